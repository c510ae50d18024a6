// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/test/testutil/need"
)

func TestContainerdOfAKilledCommandIsEnded(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	dir, err := os.MkdirTemp("", "wg") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	log := slog.New(slog.DiscardHandler)
	c := Config{RunDir: filepath.Join(dir, "b"), StateDir: filepath.Join(dir, "state"), Containerd: ContainerdOwn,
		XDPMode: "auto", Addresses: DefaultAddresses, PodAddresses: DefaultPodAddresses}
	killed := filepath.Join(dir, "a")
	own, err := containerd.StartOwn(t.Context(), containerd.OwnConfig{StateDir: c.StateDir, RunDir: killed, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	pid := own.PID()
	own.Release()
	if err := WithContainerd(t.Context(), c, log, func(c *client.Client, _ string) error {
		_, err := c.Version(t.Context())
		return err
	}); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(containerd.OwnConfigFile(killed))
	if err != nil || !strings.Contains(string(text), c.StateDir) {
		t.Errorf("%v, %s", err, text)
	}
	if holder, err := holderOf(containerd.OwnLock(c.StateDir)); err != nil || holder != 0 {
		t.Errorf("process %d still has the images (the first was %d), %v", holder, pid, err)
	}

	// Another program is left alone, and named.
	other := exec.Command("flock", containerd.OwnLock(c.StateDir), "cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = other.Wait() }()
	for holder := 0; holder == 0; {
		if holder, err = holderOf(containerd.OwnLock(c.StateDir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := endOrphan(c, log); err == nil || !strings.Contains(err.Error(), "in use by process") ||
		!strings.Contains(err.Error(), "give another --state-dir") {
		t.Errorf("%v", err)
	}
	if err := other.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the other program: %v", err)
	}
}
