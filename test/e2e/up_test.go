// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// service is a short form of a manifest.
type service struct {
	name  string
	image string // default: the tests' own server
	port  int    // default: 80
	to    int    // target port, default: 8080
	idle  int    // seconds, default: an hour
	env   map[string]string
	ports string // spec.ports, in place of port and targetPort: "[{name: http, port: 80}]"
	more  string // further lines of the spec, such as "wakeTimeout: 2"
}

// manifest writes services as YAML documents.
func manifest(services ...service) string {
	var b strings.Builder
	for _, s := range services {
		or := func(v, other int) int {
			if v == 0 {
				return other
			}
			return v
		}
		img := s.image
		if img == "" {
			img = serverTag
		}
		fmt.Fprintf(&b, "---\napiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: %s}\nspec:\n",
			s.name)
		fmt.Fprintf(&b, "  image: %q\n", img)
		if s.ports != "" {
			fmt.Fprintf(&b, "  ports: %s\n", s.ports)
		} else {
			fmt.Fprintf(&b, "  port: %d\n  targetPort: %d\n", or(s.port, 80), or(s.to, 8080))
		}
		fmt.Fprintf(&b, "  idleTimeout: %d\n", or(s.idle, 3600))
		if len(s.env) > 0 {
			fmt.Fprintf(&b, "  env:\n")
			for _, name := range slices.Sorted(maps.Keys(s.env)) {
				fmt.Fprintf(&b, "    - {name: %s, value: %q}\n", name, s.env[name])
			}
		}
		for line := range strings.Lines(s.more) {
			fmt.Fprintf(&b, "  %s\n", strings.TrimRight(line, "\n"))
		}
	}
	return b.String()
}

// up is a running wangell up -o json.
type up struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // of the process, once done
	// outputs are the read ends of its output.
	outputs []io.Closer

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every event
	events  []status.Event
	log     bytes.Buffer
}

// start runs wangell up with services and returns once it is ready. It is stopped at the end of the test.
func (l *lab) start(t *testing.T, services ...service) *up {
	t.Helper()
	return l.startWith(t, manifest(services...), "-f", "-")
}

// startWith is start with standard input and flags.
func (l *lab) startWith(t *testing.T, stdin string, flags ...string) *up {
	t.Helper()
	u, err := l.launch(stdin, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.stop(); err != nil {
			t.Errorf("wangell up: %v", err)
		}
		if t.Failed() {
			t.Logf("output of wangell up:\n%s", u.said())
		}
	})
	u.await(t, 0, "ready", func(e status.Event) bool { return e.Kind == "ready" })
	return u
}

// launch starts the process.
func (l *lab) launch(stdin string, flags ...string) (*up, error) {
	argv := []string{
		program, "up", "--run-dir", l.run, "--state-dir", l.state, "--containerd", "own", "--interface", "eth0",
		"--metrics-address", "", "-o", "json", "--log-level", "debug",
	}
	u := &up{cmd: l.Node.Command(context.Background(), append(argv, flags...)...), done: make(chan struct{}),
		changed: make(chan struct{})}
	u.cmd.Stdin, u.cmd.Env = strings.NewReader(stdin), append(os.Environ(), "TMPDIR="+l.temp())
	// Not the pipes of exec.Cmd: processes that a killed up leaves behind may hold them open, and Wait would wait for
	// these.
	stdout, stdoutW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stderr, stderrW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	u.cmd.Stdout, u.cmd.Stderr, u.outputs = stdoutW, stderrW, []io.Closer{stdout, stderr}
	err = u.cmd.Start()
	stdoutW.Close()
	stderrW.Close()
	if err != nil {
		stdout.Close()
		stderr.Close()
		return nil, err
	}
	var readers sync.WaitGroup
	readers.Go(func() { u.readEvents(stdout) })
	readers.Go(func() { u.readLog(stderr) })
	go func() {
		u.err = u.cmd.Wait()
		read := make(chan struct{})
		go func() { readers.Wait(); close(read) }()
		select {
		case <-read:
		case <-time.After(3 * time.Second):
		}
		close(u.done)
	}()
	return u, nil
}

func (u *up) readEvents(r io.ReadCloser) {
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		var e status.Event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			e = status.Event{Kind: "not JSON", Text: s.Text()}
		}
		u.mu.Lock()
		u.events = append(u.events, e)
		close(u.changed)
		u.changed = make(chan struct{})
		u.mu.Unlock()
	}
}

func (u *up) readLog(r io.ReadCloser) {
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		u.mu.Lock()
		u.log.WriteString(s.Text() + "\n")
		u.mu.Unlock()
	}
}

// said returns everything that up has written: its log, then its events.
func (u *up) said() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	text := u.log.String()
	for _, e := range u.events {
		line, _ := json.Marshal(e)
		text += string(line) + "\n"
	}
	return text
}

// now returns the number of events so far.
func (u *up) now() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.events)
}

// await returns the first matching event from number since on, past or future.
func (u *up) await(t *testing.T, since int, what string, match func(status.Event) bool) status.Event {
	t.Helper()
	timeout := time.After(e2e.Patience)
	for {
		u.mu.Lock()
		for ; since < len(u.events); since++ {
			if e := u.events[since]; match(e) {
				u.mu.Unlock()
				return e
			}
		}
		changed := u.changed
		u.mu.Unlock()
		select {
		case <-changed:
		case <-u.done:
			t.Fatalf("wangell up exited before %s: %v", what, u.err)
		case <-timeout:
			t.Fatalf("wangell up: no event: %s", what)
		}
	}
}

// reports returns a match for an event that reports a text to the user.
func reports(severity, text string) func(status.Event) bool {
	return func(e status.Event) bool {
		return e.Kind == status.EventReport && e.Severity == severity && strings.Contains(e.Text, text)
	}
}

// stop stops wangell up with SIGTERM and returns its error; nil if it has exited already.
func (u *up) stop() error {
	select {
	case <-u.done:
		return nil
	default:
	}
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-u.done:
		return u.err
	case <-time.After(e2e.Patience):
		return errors.Join(errors.New("does not exit after SIGTERM"), u.kill())
	}
}

// kill ends wangell up as kill -9 does.
func (u *up) kill() error {
	if err := u.cmd.Process.Kill(); err != nil {
		return err
	}
	<-u.done
	return nil
}
