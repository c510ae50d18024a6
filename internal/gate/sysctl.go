// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// writeSysctl writes a kernel setting, named relative to /proc/sys. In an unprivileged container /proc/sys is
// read-only. There, it uses a proc file system of its own that shows the same settings and is mounted nowhere
// (fsopen(2), fsmount(2)), which needs CAP_SYS_ADMIN.
func writeSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("/proc/sys is read-only; opening a proc file system: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("/proc/sys is read-only; creating a proc file system: %w", err)
	}
	proc, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/proc/sys is read-only; mounting a proc file system: %w", err)
	}
	defer unix.Close(proc)
	fd, err := unix.Openat(proc, "sys/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc/sys/" + name, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: "/proc/sys/" + name, Err: err}
	}
	return nil
}
