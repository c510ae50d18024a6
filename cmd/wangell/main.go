// SPDX-License-Identifier: Apache-2.0

// Command wangell runs TCP services that exist only while they are used.
package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/show/cli"
)

func init() {
	// A daemon is started through /proc/self/exe, whose last part would be its name in ps and top. The main thread,
	// on which init functions run, is the one that gives a process its name.
	name, err := unix.BytePtrFromString("wangell")
	if err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0) // only for users
	}
}

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code.
func run(args []string) int { return cli.Run(newRoot(), args) }
