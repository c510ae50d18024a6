// SPDX-License-Identifier: Apache-2.0

package podinit

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/need"
)

// install returns the path of a program.
func install(t *testing.T, p Program) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), string(p))
	for range 2 { // the second time nothing is to be done
		if err := p.Install(file); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestBothArchitecturesHaveThePrograms(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		for _, p := range []Program{Init, Wait} {
			text, err := p.Executable(arch)
			if err != nil {
				t.Fatal(err)
			}
			e, err := elf.NewFile(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if t.Logf("%s, %s: %d bytes", p, arch, len(text)); e.Machine != machine || len(text) > 4096 {
				t.Errorf("%s, %s: %v, %d bytes", p, arch, e.Machine, len(text))
			}
		}
	}
	if _, err := Init.Executable("riscv64"); err == nil {
		t.Error("there is a program for riscv64")
	}
}

func TestInitExitsAsTheProgramDoes(t *testing.T) {
	file := install(t, Init)
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
		{[]string{"no-program"}, NotFound, Complaint + "no-program: no such program in the image\n"},
		{[]string{"/no/such"}, NotFound, Complaint + "/no/such: no such program in the image\n"},
		{[]string{script}, CannotRun, Complaint + script + ": permission denied\n"},
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
func TestAsPID1InitPassesSignalsOnAndReaps(t *testing.T) {
	need.Root(t)
	file := install(t, Init)
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

// awaken has Wait become a program, after other signals, and returns its output and exit status. As in a container, it
// is PID 1.
func awaken(t *testing.T, signals []syscall.Signal, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(install(t, Wait), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)
	for {
		text, err := os.ReadFile(status)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "SigBlk:\tfffffffffffb") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, s := range append(signals, Wake) {
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	_ = cmd.Wait()
	return out.String(), cmd.ProcessState.ExitCode()
}

func TestWaitBecomesTheProgramOnItsSignalOnly(t *testing.T) {
	need.Root(t)
	var all []syscall.Signal
	for s := syscall.Signal(1); s <= 64; s++ {
		if s != syscall.SIGKILL && s != syscall.SIGSTOP && s != Wake {
			all = append(all, s)
		}
	}
	// One that is stopped, and goes on, waits as before.
	all = append(all, syscall.SIGSTOP, syscall.SIGCONT)
	got, code := awaken(t, all, "cat", "/proc/self/status")
	lines := strings.Split(got, "\n")
	for _, want := range []string{"Name:\tcat", "SigBlk:\t0000000000000000", "ShdPnd:\t0000000000000000"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %q in the status of the program (exit status %d): %s", want, code, got)
		}
	}
}

func TestWaitSaysWhichProgramItCannotRun(t *testing.T) {
	need.Root(t)
	for program, want := range map[string]int{"no-program": NotFound, "/no/such": NotFound, "/etc/passwd": CannotRun} {
		got, code := awaken(t, nil, program)
		if code != want || !strings.HasPrefix(got, Complaint+program+": ") || !strings.HasSuffix(got, "\n") {
			t.Errorf("%s: exit status %d, %q", program, code, got)
		}
	}
}
