// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// writeSetting writes a kernel setting, such as net/ipv4/conf/wangell0/rp_filter below /proc/sys. In a container that is
// not privileged /proc/sys is read-only; then it is written through a proc file system of our own, which is mounted
// nowhere (fsopen(2), fsmount(2): CAP_SYS_ADMIN) and shows the same settings.
func writeSetting(name, value string) error {
	err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("/proc/sys is read-only here; opening a proc file system: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("/proc/sys is read-only here; making a proc file system: %w", err)
	}
	proc, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/proc/sys is read-only here; mounting a proc file system: %w", err)
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
