// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os/exec"
	"testing"
	"time"
)

func TestProcessorTimeIsThatOfProcessAndEndedChildren(t *testing.T) {
	got, err := parseCPU([]byte("42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 10 20 300 4000 20 0 1 0 99\n"))
	if err != nil || got != 43300*time.Millisecond {
		t.Errorf("%v, %v, want 43.3s", got, err)
	}
	for _, bad := range []string{"", "42 (x) S 1 2", "42 (x) S 1 42 42 0 -1 4194304 1 2 3 4 x 20 300 4000 20"} {
		if _, err := parseCPU([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestProcessorTimeOfARealProcess(t *testing.T) {
	// The shell's child works for more than a Tick and is waited for; then the shell waits for its input.
	cmd := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done; read x`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if used, err := p.CPU(); err != nil || used < Tick || used > time.Minute {
		t.Errorf("used %v, %v", used, err)
	}
	in.Close()
	<-p.Ended()
}
