// SPDX-License-Identifier: Apache-2.0

// Package ownns runs a test binary in its own namespaces, so that its devices, routes and mounts do not touch the
// machine and disappear with it.
package ownns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

const (
	inside = "WANGELL_TEST_INSIDE"
	named  = "/run/netns" // ip-netns(8)
)

// Main runs the test binary again in its own network and mount namespaces, where it calls run, and exits with the
// status that run returns. Call it from TestMain: ownns.Main(m.Run). Without root it fails, because a test that did not
// run has not passed.
func Main(run func() int) {
	if os.Getenv(inside) != "" {
		// Named network namespaces are private to this process as well.
		if err := errors.Join(os.MkdirAll(named, 0o755), unix.Mount("none", named, "tmpfs", 0, "")); err != nil {
			fmt.Println("mount", named, err)
			os.Exit(1)
		}
		os.Exit(run())
	}
	need.RootMain("these tests")
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Outside makes a command that was not started use the network from which Main was called, for downloads. It changes
// nothing in a process that Main did not start.
func Outside(cmd *exec.Cmd) error {
	if os.Getenv(inside) == "" {
		return nil
	}
	enter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	network := fmt.Sprintf("--net=/proc/%d/ns/net", os.Getppid())
	cmd.Args = append([]string{enter, network, "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = enter
	return nil
}
