// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/clusterfile"
)

// process is a process that outlives the command that started it.
type process struct{ clusterfile.Process }

// processOf returns the process with an id.
func processOf(pid int) (process, error) {
	start, err := startTime(pid)
	return process{clusterfile.Process{Pid: pid, Start: start}}, err
}

func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The program's name in field 2 may contain anything, also ')'.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// alive reports whether the process still runs.
func (p process) alive() bool {
	start, err := startTime(p.Pid)
	return err == nil && start == p.Start
}

// kill kills the process and waits until it is gone.
func (p process) kill() error {
	for deadline := time.Now().Add(20 * time.Second); p.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not die", p.Pid)
		}
		if err := unix.Kill(p.Pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("kill process %d: %w", p.Pid, err)
		}
	}
	return nil
}

// startMachine starts a machine in the network namespace of its name and waits until it accepts requests.
func startMachine(ctx context.Context, p plan, program string, c machineConfig) (process, error) {
	if err := makeCgroup(c.Cgroup); err != nil {
		return process{}, err
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "log"), 0o755); err != nil {
		return process{}, err
	}
	config := filepath.Join(c.Dir, "machine.json")
	if err := writeJSON(config, c); err != nil {
		return process{}, err
	}
	_ = os.Remove(machineSocket(c.Dir))
	proc, err := startDetached(p.netnsPath(c.Name), filepath.Join(c.Dir, "log", "init.log"),
		unix.CLONE_NEWNS|unix.CLONE_NEWUTS|unix.CLONE_NEWPID, nil, program, "machine", config)
	if err != nil {
		return process{}, err
	}
	for {
		if _, err := machineServices(ctx, c.Dir); err == nil {
			return proc, nil
		}
		if !proc.alive() || ctx.Err() != nil {
			return process{}, fmt.Errorf("%s did not start: see %s", c.Name, filepath.Join(c.Dir, "log", "init.log"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// startDetached starts a program in a network namespace and in its own session, so that it outlives its parent.
func startDetached(netns, logFile string, clone uintptr, files []*os.File, argv ...string) (process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return process{}, err
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = programEnv("")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: clone}
	if err := inNetns(netns, cmd.Start); err != nil {
		return process{}, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() { _ = cmd.Wait() }() // reaps a program that exits early
	return processOf(cmd.Process.Pid)
}

// programEnv is the environment of all programs of the cluster. bin comes first in PATH.
func programEnv(bin string) []string {
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if bin != "" {
		path = bin + ":" + path
	}
	return []string{"PATH=" + path, "HOME=/root", "LANG=C.UTF-8"}
}

// askMachine sends one request to a machine's first process.
func askMachine(ctx context.Context, dir, method, path string, body, answer any) error {
	var in bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&in).Encode(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://machine"+path, &in)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", machineSocket(dir))
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", filepath.Base(dir), err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", filepath.Base(dir), err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", filepath.Base(dir), strings.TrimSpace(string(b)))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(b, answer)
}

// machineServices returns the services of a machine with their process ids in its own PID namespace.
func machineServices(ctx context.Context, dir string) (map[string]int, error) {
	var pids map[string]int
	err := askMachine(ctx, dir, http.MethodGet, "/", nil, &pids)
	return pids, err
}

func startService(ctx context.Context, dir string, s service) error {
	return askMachine(ctx, dir, http.MethodPut, "/", s, nil)
}

// stopService stops a service, with SIGKILL after the patience.
func stopService(ctx context.Context, dir, name string, patience time.Duration) error {
	return askMachine(ctx, dir, http.MethodDelete, "/"+name+"?patience="+patience.String(), nil, nil)
}

// runOnce runs a program on a machine to its end. An exit status other than 0 is an error.
func runOnce(ctx context.Context, dir string, s service) error {
	var status int
	if err := askMachine(ctx, dir, http.MethodPost, "/run", s, &status); err != nil {
		return err
	}
	if status != 0 {
		return fmt.Errorf("%s on %s: exit status %d: see %s", s.Name, filepath.Base(dir), status, s.Log)
	}
	return nil
}

// hostPids maps the process ids in a machine's PID namespace to those of the host.
func hostPids(first int) (map[int]int, error) {
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	pids := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err != nil || link != ns {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "NSpid:" {
				if inner, err := strconv.Atoi(f[len(f)-1]); err == nil {
					pids[inner] = pid
				}
			}
		}
	}
	return pids, nil
}
