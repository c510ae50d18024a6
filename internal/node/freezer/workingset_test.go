// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// toucher maps memory, and touches every fourth page of as many MiB as a line of its input says.
const toucher = `
import ctypes, mmap, sys
memory = mmap.mmap(-1, 64 << 20)
print("ready", flush=True)
for line in sys.stdin:
    for at in range(0, int(line) << 20, 4 * mmap.PAGESIZE):
        memory[at] = 1
    print("touched", flush=True)
`

// The working set is what has been touched, and all of it can be fetched.
func TestWorkingSetHasTheTouchedPages(t *testing.T) {
	f, pod, dir := newPod(t, "")
	cmd := exec.Command("python3", "-c", toucher)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait() //nolint:errcheck // it was killed, or its input has ended
	})
	enter(t, dir, cmd.Process.Pid)
	lines := bufio.NewReader(out)
	say := func(text string) {
		if _, err := io.WriteString(in, text); err != nil {
			t.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	say("") // it is ready
	before, err := f.WorkingSet(pod)
	if errors.Is(err, ErrNoScan) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	say("32\n")
	after, err := f.WorkingSet(pod)
	if err != nil {
		t.Fatal(err)
	}
	// 32 MiB, every fourth page; some pages of the program itself may come and go.
	if grown := int64(after.Bytes) - int64(before.Bytes); grown < 8<<20-1<<20 || grown > 8<<20+2<<20 {
		t.Errorf("the set has grown by %d bytes, want about 8 MiB", grown)
	}
	if err := after.Fetch(); err != nil {
		t.Errorf("fetch: %v", err)
	}
	if _, err := f.WorkingSet("/no/such/cgroup"); err == nil || !strings.Contains(err.Error(), "no such cgroup") {
		t.Errorf("a cgroup that does not exist: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() //nolint:errcheck // it was killed
	if err := after.Fetch(); err != nil {
		t.Errorf("of a process that has ended: %v", err)
	}
}

func TestBehindSkipsTheVectorsThatWereAdvised(t *testing.T) {
	vectors := []unix.RemoteIovec{{Len: 10}, {Len: 20}, {Len: 30}}
	for n, want := range map[int]int{0: 1, 9: 1, 10: 1, 29: 1, 30: 2, 59: 2, 60: 3} {
		if got := behind(vectors, n); got != want {
			t.Errorf("%d bytes: %d vectors, want %d", n, got, want)
		}
	}
}
