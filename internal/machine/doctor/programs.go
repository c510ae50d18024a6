// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
)

// containers checks the programs behind the containerd runtime.
func containers(ctx context.Context, address string) []Check {
	running, answer := containerdAnswers(ctx, address)
	installed := program(ctx, Check{
		Name: "containerd", Group: Runtime, Required: !running, For: "instances with their own containerd",
		Do: "install the package containerd",
	}, "containerd", "--version")

	socket := Check{
		Name: "containerd service", Group: Runtime, For: "using the machine's containerd (--containerd auto)",
		Do: "nothing; Wangell starts its own",
	}
	if running {
		socket = socket.ok(answer)
	} else {
		socket = socket.warn(answer)
	}
	return []Check{
		installed,
		socket,
		program(ctx, Check{
			Name: "containerd-shim-runc-v2", Group: Runtime, Required: true,
			For: "keeping containers while containerd restarts",
			Do:  "install the package containerd",
		}, "containerd-shim-runc-v2", "-v"),
		program(ctx, Check{
			Name: "runc", Group: Runtime, Required: true, For: "starting processes in containers",
			Do: "install the package runc",
		}, "runc", "--version"),
	}
}

// containerdAnswers asks the containerd at address for its version. It returns a description either way.
func containerdAnswers(ctx context.Context, address string) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	// The client keeps retrying a missing socket; a plain dial fails at once.
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
	if err != nil {
		return false, "none at " + address
	}
	conn.Close()
	client, err := containerd.New(address, containerd.WithTimeout(checkTimeout))
	if err != nil {
		return false, err.Error()
	}
	defer client.Close()
	v, err := client.Version(ctx)
	if err != nil {
		return false, err.Error()
	}
	return true, fmt.Sprintf("%s at %s", v.Version, address)
}

// building checks the programs used by make build and make generate.
func building(ctx context.Context) []Check {
	optional := func(c Check) Check {
		if c.State == Missing {
			c.State = Warn
		}
		return c
	}
	header := fileCheck("/usr/include/bpf/bpf_helpers.h", Check{
		Name: "libbpf headers", Group: Building, For: "compiling the gate (make generate)",
		Do: "install the package libbpf-dev",
	})
	return []Check{
		optional(program(ctx, Check{
			Name: "go", Group: Building, For: "make build",
			Do: "install Go, at least the version in go.mod, from https://go.dev/dl",
		}, "go", "version")),
		optional(program(ctx, Check{
			Name: "clang-19", Group: Building, For: "compiling the gate (make generate)",
			Do: "install the package clang-19",
		}, "clang-19", "--version")),
		optional(program(ctx, Check{
			Name: "llvm-strip-19", Group: Building, For: "compiling the gate (make generate)",
			Do: "install the package llvm-19",
		}, "llvm-strip-19", "--version")),
		header,
	}
}

// program is ok if a program is found and prints its version. The first line of that is shown.
func program(ctx context.Context, c Check, name string, args ...string) Check {
	path, err := lookPath(name)
	if err != nil {
		return c.missing("not found")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).Output()
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %s", checkTimeout)
	}
	if err != nil {
		return c.missing(fmt.Sprintf("%s %s: %v", path, strings.Join(args, " "), err))
	}
	for line := range strings.Lines(string(out)) {
		// containerd-shim-runc-v2 prints its path first, then "  Version: ...".
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasSuffix(line, ":") {
			return c.ok(line)
		}
	}
	return c.ok(path)
}

// lookPath finds a program in $PATH or in the system's folders, which the $PATH of a user may lack.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		candidate := filepath.Join(dir, name)
		info, statErr := os.Stat(candidate)
		if statErr == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", err
}
