// SPDX-License-Identifier: Apache-2.0

// Package containerdtest runs containerd, with its CRI plugin, for tests.
package containerdtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/ownns"
)

// Main runs the tests of a package, as root in their own network and mount namespaces. Call it from TestMain.
func Main(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	ownns.Main(func() int {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			fmt.Println("loopback device:", err)
			return 1
		}
		return m.Run()
	})
}

// Containerd is a containerd with a folder of its own.
type Containerd struct {
	Root, Socket string
	// Hosts is the folder with the settings of registries.
	Hosts  string
	Client *client.Client // in the namespace of the CRI
}

const config = `version = 2
root = %q
state = %q
disabled_plugins = [` + containerd.SparePlugins + `
]
[grpc]
  address = %q
[ttrpc]
  address = %q
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %q
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = %q
    bin_dir = %q
`

// Start starts a containerd: WANGELL_TEST_CONTAINERD, or that in PATH. It ends with the test. Its images are in a file
// system of size bytes, or on the disk if that is 0.
func Start(t testing.TB, size int) *Containerd {
	t.Helper()
	return StartWith(t, size, "")
}

// StartWith is Start with more lines of configuration.
func StartWith(t testing.TB, size int, more string) *Containerd {
	t.Helper()
	need.Root(t)
	program := os.Getenv("WANGELL_TEST_CONTAINERD")
	if program == "" {
		need.Program(t, "containerd", "containerd")
		program = "containerd"
	}
	dir, err := os.MkdirTemp("", "pf") // short, because of the socket
	if err != nil {
		t.Fatal(err)
	}
	c := &Containerd{
		Root: filepath.Join(dir, "root"), Socket: filepath.Join(dir, "c.sock"), Hosts: filepath.Join(dir, "hosts"),
	}
	t.Cleanup(func() {
		if err := containerd.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(c.Root, 0o711); err != nil {
		t.Fatal(err)
	}
	if size > 0 {
		if err := unix.Mount("tmpfs", c.Root, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
			need.Unmet(t, "cannot mount a small tmpfs: %v", err)
		}
	}
	file := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(config, c.Root, filepath.Join(dir, "state"), c.Socket, c.Socket+".ttrpc", c.Hosts,
		filepath.Join(dir, "cni"), filepath.Join(dir, "cni")) + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "--config", file)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p, err := process.Start(cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("containerd: %s", text[max(0, len(text)-8000):])
		}
		if err := p.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
		p.Close()
	})
	if c.Client, err = client.New(c.Socket, client.WithDefaultNamespace("k8s.io")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Client.Close() })
	images := c.Images(t)
	Until(t, "containerd answers", func() bool {
		_, _, err := images.Look(t.Context(), "nothing.example/none:v1")
		return err == nil
	})
	return c
}

// Images returns its images through the CRI, until the test ends.
func (c *Containerd) Images(t testing.TB) *cri.Images {
	t.Helper()
	images, err := cri.OpenImages("unix://" + c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { images.Close() })
	return images
}

// Until waits for a condition, with growing pauses between checks.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	pause := 5 * time.Millisecond
	for end := time.Now().Add(time.Minute); !is(); pause = min(2*pause, 100*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
		time.Sleep(pause)
	}
}
