// SPDX-License-Identifier: Apache-2.0

// Command guest is the first process of a VM of test/vm and the program that runs the checks in it. As /init of the
// initramfs it loads modules, mounts the VM's disks, and becomes systemd, which starts it again as a service that runs
// the checks.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/vm/plan"
)

// maxOutput is how much of a check's output is reported, in bytes: the end of it.
const maxOutput = 1 << 20

func main() {
	work := runPlan
	if os.Getpid() == 1 {
		work = initramfs
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	// The disks are thrown away, so nothing has to be unmounted.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// mount is one call of mount(2).
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil && !errors.Is(err, syscall.EROFS) {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

func mountAll(mounts ...mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// The service of systemd that runs the checks. systemd ends no unit but its own for it, so it may run as long as it
// wants. The default dependencies are those of any service: file systems, devices, the journal.
const (
	unitFile = "/run/systemd/system/wangell-checks.service"
	unit     = `[Unit]
Description=Checks of Wangell
[Service]
ExecStart=` + plan.Dir + `/guest
StandardOutput=journal+console
TimeoutStartSec=infinity
LimitMEMLOCK=infinity
`
)

// initramfs returns only if it fails.
func initramfs() error {
	if err := mountAll(
		mount{"dev", "/dev", "devtmpfs", 0, ""}, mount{"proc", "/proc", "proc", 0, ""}, mount{"sys", "/sys", "sysfs", 0, ""},
	); err != nil {
		return err
	}
	if err := openConsole(); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	// The disks are in the order of QEMU's command line.
	for _, disk := range []string{"/dev/vda", "/dev/vdb", "/dev/vdc"} {
		if err := waitFor(disk); err != nil {
			return err
		}
	}
	if err := mountAll(
		mount{"/dev/vda", "/root", "ext4", 0, ""},
		mount{"/dev/vdb", "/root/usr/lib/modules", "ext4", unix.MS_RDONLY, ""},
		mount{"/dev/vdc", "/root" + plan.Dir, "ext4", 0, ""},
		mount{"/dev", "/root/dev", "", unix.MS_MOVE, ""},
		mount{"/proc", "/root/proc", "", unix.MS_MOVE, ""},
		mount{"/sys", "/root/sys", "", unix.MS_MOVE, ""},
	); err != nil {
		return err
	}
	if err := errors.Join(unix.Chdir("/root"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."),
		unix.Chdir("/")); err != nil {
		return fmt.Errorf("switch to the root file system: %w", err)
	}
	if err := mountAll(mount{"run", "/run", "tmpfs", 0, "mode=755"}, mount{"tmp", "/tmp", "tmpfs", 0, ""}); err != nil {
		return err
	}
	// With a machine ID this is not the first boot, in which systemd would enable all services.
	if err := errors.Join(os.WriteFile("/etc/machine-id", []byte(strings.Repeat("46", 16)+"\n"), 0o444),
		os.MkdirAll(filepath.Dir(unitFile), 0o755), os.WriteFile(unitFile, []byte(unit), 0o644)); err != nil {
		return err
	}
	return fmt.Errorf("start systemd: %w", unix.Exec("/usr/lib/systemd/systemd",
		[]string{"/usr/lib/systemd/systemd", "--unit=" + filepath.Base(unitFile)}, environment()))
}

// openConsole makes the console this process' input and output: an initramfs without /dev/console leaves it none.
func openConsole() error {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open /dev/console: %w", err)
	}
	for i := range 3 {
		if fd != i {
			if err := unix.Dup3(fd, i, 0); err != nil {
				return fmt.Errorf("use /dev/console: %w", err)
			}
		}
	}
	return nil
}

// loadModules loads the modules of the initramfs in the order of its list.
func loadModules() error {
	list, err := os.ReadFile("/modules.list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(list)) {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func waitFor(path string) error {
	for range 1000 {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%s did not appear within 10 s", path)
}

// runPlan runs the checks of the plan one after another and reports each on the VM's serial port.
func runPlan() error {
	data, err := os.ReadFile(plan.Dir + "/" + plan.File)
	if err != nil {
		return err
	}
	var p plan.Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("%s: %w", plan.File, err)
	}
	const port = "/dev/vport0p1"
	if err := waitFor(port); err != nil {
		return err
	}
	out, err := os.OpenFile(port, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	events := json.NewEncoder(out)
	if err := events.Encode(boot()); err != nil {
		return err
	}
	for _, c := range p.Checks {
		if err := events.Encode(plan.Event{Check: c.Name, State: plan.Running}); err != nil {
			return err
		}
		if err := events.Encode(run(c)); err != nil {
			return err
		}
	}
	return events.Encode(plan.Event{State: plan.Done})
}

// boot describes the VM.
func boot() plan.Event {
	e := plan.Event{State: plan.Booted, Seconds: uptime()}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		e.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var st unix.Statfs_t
	e.Cgroups = "v1"
	if unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		e.Cgroups = "v2"
	}
	e.Versions = map[string]string{}
	if b, err := exec.Command("/usr/sbin/ip", "-V").Output(); err == nil {
		e.Versions["iproute2"] = strings.TrimSpace(string(b))
	}
	return e
}

// uptime returns the seconds since the kernel started.
func uptime() float64 {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	seconds, _ := strconv.ParseFloat(first, 64) // the kernel's own format
	return seconds
}

func environment() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
		"TERM=dumb"}
}

func run(c plan.Check) plan.Event {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.Seconds)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	var output bytes.Buffer
	both := io.MultiWriter(&output, os.Stdout) // the console shows how far a check is
	cmd.Stdout, cmd.Stderr = both, both
	cmd.Dir, cmd.Env = plan.Dir+"/"+c.Dir, environment()
	cmd.WaitDelay = 5 * time.Second // processes that it leaves may hold its output open
	err := cmd.Run()
	e := plan.Event{Check: c.Name, State: plan.Passed, Seconds: time.Since(begin).Seconds()}
	switch {
	case ctx.Err() != nil:
		e.State, e.Why = plan.Failed, fmt.Sprintf("not done within %d s", c.Seconds)
	case err != nil:
		e.State, e.Why = plan.Failed, err.Error()
	}
	text := output.Bytes()
	if len(text) > maxOutput {
		text = text[len(text)-maxOutput:]
	}
	e.Output = string(text)
	return e
}
