// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/syncbuf"
)

func TestAttachedCommandHasStreamsATerminalAndAnExitCode(t *testing.T) {
	r := startWithProbe(t, unready(t))
	s := runtimetest.Service("attach", "COLOR", "blue")
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	program := runtimetest.Look(t, p).Args[0]
	dir := PipesDir(r.cfg.RunDir)
	attach := func(ctx context.Context, c Command) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return Attach(ctx, r.Client(), dir, p.ID, c)
	}
	args := func(what string) []string { return []string{program, "run", what} }

	// All of the input arrives, and all of the output, which is slower to read than the command is to end.
	data := strings.Repeat("a line of input\n", 40_000)
	var stdout, stderr bytes.Buffer
	code, err := attach(t.Context(), Command{Args: args("cat"), Stdin: strings.NewReader(data),
		Stdout: slowly{&stdout}, Stderr: &stderr})
	if code != 5 || err != nil || stdout.String() != data || stderr.String() != "640000 bytes <nil>\n" {
		t.Errorf("code %d, %v: %d of %d bytes, %q", code, err, stdout.Len(), len(data), stderr.String())
	}
	stdout.Reset()
	code, err = attach(t.Context(), Command{Args: args("shout"), Stdout: &stdout, Stderr: io.Discard})
	if code != 7 || err != nil || stdout.Len() != 5<<18 {
		t.Errorf("code %d, %v: %d bytes", code, err, stdout.Len())
	}
	stdout.Reset()
	code, err = attach(t.Context(), Command{Args: args("look"), Env: []string{"COLOR=red", "MORE=yes"}, Dir: "/proc",
		Stdout: &stdout, Stderr: io.Discard})
	if out := stdout.String(); code != 0 || err != nil || !strings.Contains(out, `"COLOR=red"`) ||
		!strings.Contains(out, `"MORE=yes"`) || strings.Contains(out, "blue") || !strings.Contains(out, `"Dir":"/proc"`) {
		t.Errorf("code %d, %v: %s", code, err, out)
	}

	// An input that has ended before the command starts.
	if code, err := attach(t.Context(), Command{Args: args("cat"), Stdin: strings.NewReader(""), Stdout: io.Discard,
		Stderr: io.Discard}); code != 5 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}

	// Without a terminal.
	stdout.Reset()
	if code, err := attach(t.Context(), Command{Args: args("tty"), Stdout: &stdout, Stderr: io.Discard}); code != 6 ||
		err != nil {
		t.Errorf("code %d, %v: %s", code, err, stdout.String())
	}
	// With one that has a size from the beginning, and with one that gets it later. The input is typed once the size is
	// printed.
	sizes := make(chan Size, 1)
	sizes <- Size{Width: 91, Height: 17}
	for _, c := range []Command{{Size: Size{Width: 91, Height: 17}}, {Sizes: sizes}} {
		var screen syncbuf.Buffer
		keys, typed := io.Pipe()
		c.Args, c.Env, c.Stdin, c.Stdout, c.TTY = args("tty"), []string{"TERM=vt100"}, keys, &screen, true
		go func() {
			for t.Context().Err() == nil && !strings.Contains(screen.String(), "rows") {
				time.Sleep(time.Millisecond)
			}
			_, _ = io.WriteString(typed, "hello\n")
		}()
		code, err = attach(t.Context(), c)
		if out := screen.String(); code != 0 || err != nil || !strings.Contains(out,
			"91 columns, 17 rows, TERM=vt100\r\n") || !strings.Contains(out, "read hello\r\n") {
			t.Errorf("size %+v: code %d, %v: %q", c.Size, code, err, out)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := attach(ctx, Command{Args: args("hang"), Stdout: io.Discard, Stderr: io.Discard}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("a command that is interrupted: %v", err)
	}
	for _, want := range []struct {
		Command
		missing bool
		reason  string
	}{
		{Command{Args: []string{"/none"}}, true, "no such file or directory"},
		{Command{Args: []string{"none"}}, true, "executable file not found in $PATH"},
		{Command{Args: []string{"/proc"}}, false, "permission denied"},
		{Command{Args: []string{"/proc/version"}}, false, "permission denied"},
		{Command{Args: args("look"), Dir: "/none"}, false, `chdir to cwd ("/none") set in config.json failed: no such file`},
	} {
		want.Stdout, want.Stderr = io.Discard, io.Discard
		_, err = attach(t.Context(), want.Command)
		var cannot *CommandError
		if !errors.As(err, &cannot) || cannot.NotFound != want.missing || !strings.HasPrefix(cannot.Reason, want.reason) {
			t.Errorf("%q in %q: %v (%+v)", want.Args, want.Dir, err, cannot)
		}
	}
	if _, err := attach(t.Context(), Command{Args: args("shout"), Stdout: broken{}, Stderr: io.Discard}); !errors.Is(err,
		syscall.EPIPE) {
		t.Errorf("a command whose output nobody reads: %v", err)
	}
	c, err := r.Client().LoadContainer(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.Task(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := task.Pids(t.Context()); err != nil || len(pids) != 1 {
		t.Errorf("processes %v, %v: want the pod's own", pids, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("pipes are left: %v, %v", left, err)
	}
}

// broken is a writer without a reader.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// slowly is a writer that is slower than what is written to it.
type slowly struct{ w io.Writer }

func (s slowly) Write(p []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return s.w.Write(p)
}

func TestFurtherVariablesReplaceThoseOfThePod(t *testing.T) {
	got := mergeEnv([]string{"A=1", "B=2", "C=3"}, []string{"B=x=y", "D="})
	if want := []string{"A=1", "C=3", "B=x=y", "D="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
