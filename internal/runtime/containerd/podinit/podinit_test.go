// SPDX-License-Identifier: Apache-2.0

package podinit

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"wangell.loutres.me/internal/testutil/need"
)

// install returns the path of the program.
func install(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "init")
	for range 2 { // the second time nothing is to be done
		if err := Install(file); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestBothArchitecturesHaveAProgram(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		text, err := Program(arch)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "init")
		if err := os.WriteFile(file, text, 0o555); err != nil {
			t.Fatal(err)
		}
		e, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if e.Machine != machine || len(text) > 4096 {
			t.Errorf("%s: %v, %d bytes", arch, e.Machine, len(text))
		}
		_ = e.Close()
	}
	if _, err := Program("riscv64"); err == nil {
		t.Error("there is a program for riscv64")
	}
}

func TestItExitsAsTheProgramDoes(t *testing.T) {
	file := install(t)
	script := filepath.Join(t.TempDir(), "no-program")
	if err := os.WriteFile(script, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"/bin/sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"no-program"}, NotFound, "wangell: spec.init cannot run no-program: no such program in the image\n"},
		{[]string{"/no/such"}, NotFound, "wangell: spec.init cannot run /no/such: no such program in the image\n"},
		{[]string{script}, CannotRun, "wangell: spec.init cannot run " + script + ": permission denied\n"},
		{nil, NotFound, ""},
	} {
		out, err := exec.Command(file, test.args...).CombinedOutput()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != test.code || string(out) != test.says {
			t.Errorf("%q: exit status %d, %q; want %d, %q", test.args, code, out, test.code, test.says)
		}
	}
}

// In a PID namespace of its own the first process is PID 1, as in a container.
func TestAsPID1ItPassesSignalsOnAndReaps(t *testing.T) {
	need.Root(t)
	file := install(t)
	for _, test := range []struct {
		script string
		signal syscall.Signal
		want   int
	}{
		// A handler, none, and one for a real-time signal.
		{"trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done", syscall.SIGTERM, 3},
		{"echo up; exec sleep 1000", syscall.SIGTERM, 128 + 15},
		{"echo up; exec sleep 1000", 37, 128 + 37},
		// The orphan is gone once the shell cannot signal it any more: a zombie could be.
		{"(sleep 0.01 & echo $! >&3) 3>$FILE; pid=$(cat $FILE); while kill -0 $pid 2>/dev/null; do :; done; echo up; " +
			"exec sleep 1000", syscall.SIGINT, 128 + 2},
	} {
		cmd := exec.Command(file, "bash", "-c", test.script)
		cmd.Env = append(os.Environ(), "FILE="+filepath.Join(t.TempDir(), "pid"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
			t.Errorf("%s: %q %v %s", test.script, line, err, errs.String())
		}
		if err := cmd.Process.Signal(test.signal); err != nil {
			t.Error(err)
		}
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != test.want {
			t.Errorf("%s: %s: %v, want exit status %d", test.script, fmt.Sprint(test.signal), cmd.ProcessState, test.want)
		}
	}
}
