// SPDX-License-Identifier: Apache-2.0

// Command only runs a program in a folder that two of it at once would destroy. It locks the file "lock" of the folder
// for as long as the program or a process that it forks lives, in whatever container. If another one holds the lock, it
// writes both into the file "conflict" and exits with status 3.
//
//	only FOLDER PROGRAM ARGUMENT...
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: only FOLDER PROGRAM ARGUMENT...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "only:", err)
		os.Exit(3)
	}
}

func run(folder string, argv []string) error {
	self := whoami()
	// Not os.OpenFile, which sets O_CLOEXEC: the lock belongs to the open file, which the program and its children
	// inherit. A process in another PID namespace cannot be looked up, and in its own each server is PID 1.
	fd, err := syscall.Open(filepath.Join(folder, "lock"), syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock: %w", err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.Join(fmt.Errorf("%s: another one runs in this folder: %s", self, holder(fd)),
			note(folder, fmt.Sprintf("%s met %s\n", self, holder(fd))))
	} else if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Ftruncate(fd, 0); err != nil {
		return err
	}
	if _, err := syscall.Pwrite(fd, []byte(self), 0); err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

// whoami names this process: host name, the node in the environment if there is one, boot ID, PID and time.
func whoami() string {
	host, _ := os.Hostname()
	if node := os.Getenv("NODE"); node != "" {
		host += " on " + node
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return fmt.Sprintf("host %s, boot %s, PID %d, since %s", host, strings.TrimSpace(string(boot)), os.Getpid(),
		time.Now().Format("15:04:05.000"))
}

// holder is the text of the lock's holder.
func holder(fd int) string {
	buf := make([]byte, 512)
	n, err := syscall.Pread(fd, buf, 0)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
}

// note adds a line to the file "conflict".
func note(folder, line string) error {
	f, err := os.OpenFile(filepath.Join(folder, "conflict"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
