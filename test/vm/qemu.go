// SPDX-License-Identifier: Apache-2.0

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
	"strings"
	"syscall"
	"time"

	"wangell.loutres.me/test/vm/plan"
)

// machine is a VM.
type machine struct {
	arch            string // of Go and Debian: amd64 or arm64
	kernel, initrd  string // files
	disks           []string
	console         string        // the file for its messages
	limit           time.Duration // for everything
	memory, virtual int           // MiB, processors
}

// arguments returns QEMU's program and its command line. Processors are emulated, as the runner is for machines that
// are VMs themselves. Disks keep nothing of what the VM writes.
func (m machine) arguments() (program string, args []string) {
	// On a busy machine the kernel's check of its timer finds too few interrupts.
	line := "panic=-1 loglevel=5 mitigations=off no_timer_check"
	switch m.arch {
	case "arm64":
		program, args = "qemu-system-aarch64", []string{"-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"}
		line += " console=ttyAMA0"
	default:
		// Five levels of page tables cost an emulator time and give a VM nothing.
		program, args = "qemu-system-x86_64", []string{"-machine", "q35", "-cpu", "max,la57=off"}
		line += " console=ttyS0"
	}
	args = append(args, "-accel", "tcg,thread=multi", "-smp", fmt.Sprint(m.virtual), "-m", fmt.Sprint(m.memory),
		"-display", "none", "-nodefaults", "-no-user-config", "-no-reboot", "-serial", "file:"+m.console,
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", line,
		"-device", "virtio-serial-pci", "-chardev", "file,id=events,path=/dev/stdout",
		"-device", "virtserialport,nr=1,chardev=events,name=events",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng")
	for i, disk := range m.disks {
		args = append(args, "-drive", fmt.Sprintf("file=%s,format=raw,if=none,id=disk%d,snapshot=on,cache=unsafe", disk, i),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d", i))
	}
	return program, args
}

// run boots the VM, passes its events to a function and returns once it is off. It is an error if the VM ends before
// its checks are done.
func (m machine) run(ctx context.Context, on func(plan.Event)) error {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	program, args := m.arguments()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the VM: %w: make vm installs what it needs (hack/install-deps.sh vm)", err)
	}
	done := false
	events := json.NewDecoder(out)
	for {
		var e plan.Event
		if err = events.Decode(&e); err != nil {
			break
		}
		done = done || e.State == plan.Done
		on(e)
	}
	_, _ = io.Copy(io.Discard, out) // so that it can end
	waited := cmd.Wait()
	switch {
	case done && waited == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("the VM is not done after %v; its last messages:\n%s", m.limit, tail(m.console))
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("events of the VM: %w", err)
	}
	return fmt.Errorf("the VM ended before its checks were done (%s: %v %s); its last messages:\n%s", program, waited,
		strings.TrimSpace(stderr.String()), tail(m.console))
}

// tail returns the last lines of a file, as far as it can be read.
func tail(file string) string {
	const lines = 25
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
