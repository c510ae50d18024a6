// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/need"
)

// signalOf returns the signal that ended a process.
func signalOf(t *testing.T, wait error, state *os.ProcessState) syscall.Signal {
	t.Helper()
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		t.Fatalf("the process ended by no signal: %v, %v", wait, state)
	}
	return status.Signal()
}

// testConfig returns a configuration that Down accepts, in folders of the test.
func testConfig(t *testing.T) Config {
	c := good(t)
	dir, err := os.MkdirTemp("", "wginst-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c.RunDir, c.StateDir, c.Containerd = filepath.Join(dir, "run"), filepath.Join(dir, "state"), ContainerdOwn
	return c
}

func TestRunningInstanceIsAskedToExitAndThenKilled(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	t.Run("it exits when asked", func(t *testing.T) {
		c := testConfig(t)
		p := hold(t, c.RunDir)
		if err := end(context.Background(), c, time.Minute, log); err != nil {
			t.Fatal(err)
		}
		if s := signalOf(t, p.Wait(), p.ProcessState); s != syscall.SIGTERM {
			t.Errorf("ended by %v, want SIGTERM", s)
		}
	})
	t.Run("it is killed after the patience", func(t *testing.T) {
		t.Setenv(stubbornEnv, "1")
		c := testConfig(t)
		p := hold(t, c.RunDir)
		if err := end(context.Background(), c, 200*time.Millisecond, log); err != nil {
			t.Fatal(err)
		}
		if s := signalOf(t, p.Wait(), p.ProcessState); s != syscall.SIGKILL {
			t.Errorf("ended by %v, want SIGKILL", s)
		}
	})
	t.Run("no instance is no error", func(t *testing.T) {
		if err := end(context.Background(), testConfig(t), time.Minute, log); err != nil {
			t.Errorf("no process holds the folder: %v", err)
		}
	})
	t.Run("the wait ends with the context", func(t *testing.T) {
		t.Setenv(stubbornEnv, "1")
		c := testConfig(t)
		hold(t, c.RunDir)
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		if err := end(ctx, c, time.Hour, log); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
}

func TestDownOfNoInstanceLeavesNothing(t *testing.T) {
	need.Root(t)
	c := testConfig(t)
	if err := Down(context.Background(), c, time.Minute, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{c.RunDir, c.StateDir} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it not there", dir, err)
		}
	}
}

func TestOnlyAnInstanceWithTheSameConfigurationIsAdopted(t *testing.T) {
	left := good(t)
	if err := left.adopts(left); err != nil {
		t.Errorf("the same configuration: %v", err)
	}
	for flag, change := range map[string]func(*Config){
		"--state-dir":               func(c *Config) { c.StateDir = "/other" },
		"--addresses":               func(c *Config) { c.Addresses = DefaultPodAddresses },
		"--pod-addresses":           func(c *Config) { c.PodAddresses = DefaultAddresses },
		"--containerd":              func(c *Config) { c.Containerd = ContainerdOwn },
		"another network namespace": func(c *Config) { c.Netns++ },
	} {
		c := left
		change(&c)
		if err := c.adopts(left); err == nil || !strings.Contains(err.Error(), flag) ||
			!strings.Contains(err.Error(), "wangell down") {
			t.Errorf("%s: %v, want an error that names the flag and what to do", flag, err)
		}
	}
	// These may change while pods run.
	c := left
	c.XDPMode, c.Interfaces, c.MetricsAddress = "generic", []string{"eth1"}, ""
	if err := c.adopts(left); err != nil {
		t.Errorf("another interface: %v", err)
	}
}
