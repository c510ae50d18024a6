// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
)

// runningContainerd is a containerd that answers on a socket.
type runningContainerd struct {
	version  string // without what distributions append
	file     string // its configuration
	settings settings
	path     string // its $PATH
}

// findContainerd finds the process behind a socket with its command line and environment in /proc, and runs its
// program to print the configuration.
func findContainerd(ctx context.Context, address string) (d runningContainerd, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	pid, err := behind(ctx, address)
	if err != nil {
		return d, err
	}
	client, err := containerd.New(address, containerd.WithTimeout(checkTimeout))
	if err != nil {
		return d, err
	}
	defer client.Close()
	v, err := client.Version(ctx)
	if err != nil {
		return d, err
	}
	d.version, _, _ = strings.Cut(strings.TrimPrefix(v.Version, "v"), "~")
	proc := fmt.Sprintf("/proc/%d", pid)
	argv, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return d, err
	}
	environment, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return d, err
	}
	for _, e := range strings.Split(string(environment), "\x00") {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			d.path = value
		}
	}
	d.file = configOf(strings.Split(strings.TrimRight(string(argv), "\x00"), "\x00"))
	file, err := fromHere(proc, d.file)
	if err != nil {
		return d, err
	}
	show := []string{"--config", file, "config", "dump"}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		show = []string{"config", "default"}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(proc, "exe"), show...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, lastLine(exit.Stderr))
		}
		return d, fmt.Errorf("containerd config dump with %s: %w", d.file, err)
	}
	d.settings = parseDump(out)
	return d, nil
}

// fromHere returns the path at which this process finds a file of another process, whose folder in /proc is proc.
func fromHere(proc, file string) (string, error) {
	if !filepath.IsAbs(file) {
		return filepath.Join(proc, "cwd", file), nil
	}
	its, err := os.Readlink(filepath.Join(proc, "ns", "mnt"))
	if err != nil {
		return "", err
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil || its == own {
		return file, err
	}
	return filepath.Join(proc, "root", file), nil
}

// lastLine returns the last line of a program's output.
func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// behind returns the process that listens on a Unix socket.
func behind(ctx context.Context, address string) (pid int32, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
	if err != nil {
		return 0, errors.New("no containerd at " + address)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil || err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", address, errors.Join(ctlErr, err))
	}
	return peer.Pid, nil
}

// settings are the settings of plugins, as `containerd config dump` prints them: by "PLUGIN KEY".
type settings map[string]string

// parseDump reads the output of `containerd config dump`, which has each table's header and each setting on a line of
// its own. Settings of tables within the tables of plugins are left out.
func parseDump(dump []byte) settings {
	found, plugin := settings{}, ""
	for lines := bufio.NewScanner(bytes.NewReader(dump)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if header, ok := strings.CutPrefix(line, "["); ok {
			name := strings.TrimSuffix(strings.TrimPrefix(header, "plugins."), "]")
			if plugin = strings.Trim(name, `'"`); strings.ContainsAny(plugin, `'"`) {
				plugin = ""
			}
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok && plugin != "" {
			found[plugin+" "+strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `'"`)
		}
	}
	return found
}

// configOf returns the file in a command line of containerd, or containerd's default.
func configOf(argv []string) string {
	for i, a := range argv {
		name, value, joined := strings.Cut(a, "=")
		switch {
		case !slices.Contains([]string{"-c", "--c", "-config", "--config"}, name):
		case joined:
			return value
		case i+1 < len(argv):
			return argv[i+1]
		}
	}
	return "/etc/containerd/config.toml"
}
