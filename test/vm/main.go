// SPDX-License-Identifier: Apache-2.0

// Command vm boots VMs with kernels of Debian, and checks in them whether the gate's programs load and handle
// packets. QEMU emulates the processor, so it needs no KVM and also runs on VMs. See README.md beside it.
//
//	go run ./test/vm --kernels "oldest 6.12 newest"
//	go run ./test/vm --arch arm64 --kernels 6.12 --checks load
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"wangell.loutres.me/test/vm/plan"
)

// options are the flags.
type options struct {
	kernels, arch, checks, mirror, out string
	list                               bool
	limit                              time.Duration
	memory, processors                 int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "vm: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	flag.StringVar(&o.kernels, "kernels", "oldest 6.12 newest",
		"kernels: oldest (that Wangell supports) and newest of Debian's packages, or the beginning of a version")
	flag.StringVar(&o.arch, "arch", "amd64", "amd64 or arm64")
	flag.StringVar(&o.checks, "checks", "", "checks to run, separated by commas; default: all")
	flag.StringVar(&o.mirror, "mirror", "http://deb.debian.org", "where debian and debian-security are")
	flag.StringVar(&o.out, "out", "bin/vm", "folder for the output of the checks, consoles and results.json")
	flag.BoolVar(&o.list, "list", false, "list checks and kernels")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "for one VM")
	flag.IntVar(&o.memory, "memory", 2048, "of a VM, in MiB")
	flag.IntVar(&o.processors, "cpus", 1, "of a VM; with more, VMs of amd64 have hung on a busy machine")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("%q is not a flag: see --help", flag.Arg(0))
	case o.arch != "amd64" && o.arch != "arm64":
		return fmt.Errorf("--arch %q: must be amd64 or arm64", o.arch)
	case os.Geteuid() != 0:
		return errors.New("needs root to make a root file system: run it with sudo")
	}
	if _, err := os.Stat("test/vm/guest"); err != nil {
		return errors.New("run it in the root of the repository: go run ./test/vm")
	}
	for _, program := range []string{"mmdebstrap", "depmod", "mke2fs", "xz", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("needs %s: hack/install-deps.sh vm installs it", program)
		}
	}
	chosen, err := chosenChecks(o.checks)
	if err != nil {
		return err
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("cache folder: %w", err)
	}
	cache := filepath.Join(user, "wangell", "vm")
	p, err := newPackages(ctx, filepath.Join(cache, "apt-"+o.arch), o.mirror, o.arch)
	if err != nil {
		return err
	}
	all, err := p.kernels(ctx)
	if err != nil {
		return err
	}
	if o.list {
		say("kernels: %s\nchecks:", strings.Join(all, " "))
		for _, c := range checks {
			say("  %-10s %s", c.name, c.shows)
		}
		return nil
	}
	var wanted []string
	for _, word := range strings.Fields(o.kernels) {
		release, err := choose(all, word)
		if err != nil {
			return err
		}
		if !slices.Contains(wanted, release) {
			wanted = append(wanted, release)
		}
	}
	return o.boot(ctx, p, cache, wanted, chosen)
}

// boot runs the checks on one kernel after another.
func (o options) boot(ctx context.Context, p *packages, cache string, releases []string, chosen []check) error {
	work, err := os.MkdirTemp("", "wangell-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	root, err := rootDisk(ctx, cache, o.mirror, o.arch)
	if err != nil {
		return err
	}
	say("programs and tests for %s", o.arch)
	payload, err := newPayload(ctx, filepath.Join(work, "payload"), o.arch, chosen)
	if err != nil {
		return err
	}
	var results []result
	for _, release := range releases {
		k, err := p.fetch(ctx, cache, release)
		if err != nil {
			return err
		}
		initrd, disk := filepath.Join(work, "initrd"), filepath.Join(work, "payload.img")
		if err := writeInitrd(initrd, payload.guest(), k.initrdModules); err != nil {
			return err
		}
		if err := payload.write(ctx, disk); err != nil {
			return err
		}
		results = append(results, o.one(ctx, release, machine{arch: o.arch, kernel: k.image, initrd: initrd,
			disks: []string{root, k.modulesDisk, disk}, limit: o.limit, memory: o.memory,
			virtual: o.processors}))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return report(o.out, results)
}

// one runs a VM and returns its report.
func (o options) one(ctx context.Context, release string, m machine) result {
	r := result{Release: release, Arch: o.arch}
	dir := filepath.Join(o.out, release)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		r.Problem = err.Error()
		return r
	}
	m.console = filepath.Join(dir, "console.log")
	say("%s: boots", release)
	begin := time.Now()
	err := m.run(ctx, func(e plan.Event) {
		switch e.State {
		case plan.Booted:
			r.Kernel, r.Cgroups, r.Versions, r.BootSeconds = e.Kernel, e.Cgroups, e.Versions, e.Seconds
			say("%s: has booted after %.0f s, control groups %s, %s", release, e.Seconds, e.Cgroups, versions(e.Versions))
		case plan.Running:
			say("%s: %s …", release, e.Check)
		case plan.Passed, plan.Failed:
			log := filepath.Join(dir, e.Check+".log")
			if err := os.WriteFile(log, []byte(e.Output), 0o644); err != nil {
				e.State, e.Why = plan.Failed, err.Error()
			}
			why := ""
			if e.State == plan.Failed {
				why = ": " + e.Why + ": see " + log
			}
			say("%s: %s %s after %.1f s%s", release, e.Check, e.State, e.Seconds, why)
			e.Output = ""
			r.Checks = append(r.Checks, e)
		}
	})
	r.Seconds = time.Since(begin).Seconds()
	if err != nil {
		r.Problem = err.Error()
		say("%s: %v", release, err)
	}
	return r
}
