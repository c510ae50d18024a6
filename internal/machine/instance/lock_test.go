// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

// holdEnv makes the test program hold the lock of the run folder that it names, until its standard input ends.
const holdEnv = "WANGELL_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		if os.Getenv(stubbornEnv) != "" {
			signal.Ignore(syscall.SIGTERM)
		}
		if _, err := acquire(Config{RunDir: dir}); err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("locked\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	if os.Getenv(keepEnv) != "" {
		c := child{name: "part", path: "/bin/sleep", args: []string{"1000"}, log: slog.Default()}
		c.started = func(pid int) { fmt.Println(pid) }
		fmt.Fprintln(os.Stderr, c.keep(context.Background()))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// stubbornEnv makes the holder ignore SIGTERM.
const stubbornEnv = "WANGELL_TEST_STUBBORN"

// keepEnv makes the test program keep a child running and print its PID.
const keepEnv = "WANGELL_TEST_KEEP"

// hold starts a process that holds the lock of a run folder.
func hold(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "locked\n" {
		t.Fatalf("holder says %q, %v", line, err)
	}
	return cmd
}

func TestLockIsExclusiveAndNamesItsHolder(t *testing.T) {
	c := Config{RunDir: filepath.Join(t.TempDir(), "run")}
	if pid, err := holder(c); pid != 0 || err != nil {
		t.Fatalf("holder of no folder: %d, %v", pid, err)
	}
	other := hold(t, c.RunDir)
	// The number in the file is for people; the kernel's counts.
	if err := os.WriteFile(c.lockFile(), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, err := holder(c); pid != other.Process.Pid || err != nil {
		t.Errorf("holder: %d, %v, want %d", pid, err, other.Process.Pid)
	}
	_, err := acquire(c)
	var running *RunningError
	if !errors.As(err, &running) || running.PID != other.Process.Pid {
		t.Fatalf("second lock: %v, want RunningError of pid %d", err, other.Process.Pid)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	if pid, err := holder(c); pid != 0 || err != nil {
		t.Errorf("holder after its death: %d, %v", pid, err)
	}
	l, err := acquire(c)
	if err != nil {
		t.Fatalf("lock after the holder's death: %v", err)
	}
	if err := l.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.RunDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run folder after remove: %v", err)
	}
}

func TestRemoveDoesNotTouchMounts(t *testing.T) {
	need.Root(t)
	c := Config{RunDir: filepath.Join(t.TempDir(), "run")}
	l, err := acquire(c)
	if err != nil {
		t.Fatal(err)
	}
	mounted := filepath.Join(c.RunDir, "mnt")
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) }()
	file := filepath.Join(mounted, "precious")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.remove(); err == nil {
		t.Error("a folder with a mount in it was removed")
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the mounted file: %v", err)
	}
}

func TestParseFlockReadsTheHolder(t *testing.T) {
	for line, want := range map[string][2]uint64{
		"1: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF":    {1234, 567},
		"1: POSIX  ADVISORY  WRITE 1234 00:1a:567 0 EOF":    {},
		"1: FLOCK  ADVISORY  READ 1234 00:1a:567 0 EOF":     {},
		"1: -> FLOCK  ADVISORY  WRITE 1235 00:1a:567 0 EOF": {},
		"": {}, "1: FLOCK ADVISORY WRITE x y 0": {},
	} {
		if pid, inode := parseFlock(line); uint64(pid) != want[0] || inode != want[1] {
			t.Errorf("parseFlock(%q) = %d, %d, want %v", line, pid, inode, want)
		}
	}
}

// The second of two instances on one state folder fails at once, and names the first.
func TestStateFolderBelongsToOneInstance(t *testing.T) {
	c := Config{StateDir: t.TempDir()}
	first, err := acquireState(c)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s belongs to another running instance (pid %d)", c.StateDir, os.Getpid())
	if _, err := acquireState(c); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	// Commands for images start no second containerd either.
	c.RunDir, c.Containerd, c.XDPMode = filepath.Join(t.TempDir(), "run"), ContainerdOwn, "auto"
	c.Addresses, c.PodAddresses = DefaultAddresses, DefaultPodAddresses
	err = WithContainerd(t.Context(), c, slog.New(slog.DiscardHandler), func(*client.Client, string) error { return nil })
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := os.Stat(c.RunDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run folder is left: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := acquireState(c)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// Only the run folder of an instance, also of a killed one, tells which pods use its state folder.
func TestStateFolderBelongsToARunFolder(t *testing.T) {
	c := Config{StateDir: t.TempDir(), RunDir: t.TempDir()}
	other := Config{StateDir: c.StateDir, RunDir: t.TempDir()}
	f, err := acquireState(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(noteRunDir(f, c.RunDir), c.save(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Volumes(c.StateDir, c.RunDir); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf("%s is the state folder of the instance with --run-dir %s", c.StateDir, c.RunDir)
	_, errVolumes := Volumes(c.StateDir, other.RunDir)
	_, errState := acquireState(other)
	for _, err := range []error{errVolumes, errState} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// Once the instance has ended, the state folder is free.
	if err := os.Remove(c.configFile()); err != nil {
		t.Fatal(err)
	}
	if _, err := Volumes(c.StateDir, other.RunDir); err != nil {
		t.Error(err)
	}
	if f, err = acquireState(other); err != nil {
		t.Fatal(err)
	}
	f.Close()
}
