// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/lab/onenode"
)

// Params configures the experiment.
type Params struct {
	// Wangell is the program to measure. Default: see onenode.FindWangell.
	Wangell string
	// Containerd is the containerd that the instance runs. Its shim is in the same folder. Default: the one in $PATH.
	Containerd string
	// Workload is the application.
	Workload string
	// Rate is the number of operations per minute that clients begin. 0: 2000 with redmine; otherwise each client
	// begins the next one at once.
	Rate int
	// Duration is how long each measurement takes. Default: 30 s, or 6 s if Quick.
	Duration time.Duration
	// Repetitions is how often each test is repeated. Default: 3, or 1 if Quick.
	Repetitions int
	// Sweep adds the tests with each setting of Redmine's tuning.
	Sweep bool
	// Quick measures shortly: enough to see that the experiment works, not to trust the numbers.
	Quick bool
	// Device is a block device for test 2. It is formatted. Empty: none.
	Device string
	// Tests are the keys of the tests to run. Empty: all.
	Tests []string
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Wangell, "wangell", "", "program to measure (default: the wangell beside this program, or in $PATH)")
	f.StringVar(&p.Containerd, "containerd", "", "containerd to run, with its shim beside it (default: the one in $PATH)")
	f.StringVar(&p.Workload, "workload", "redmine", "application: "+strings.Join(workloadNames(), " or "))
	f.IntVar(&p.Rate, "rate", 0, "operations per minute (default: redmine 2000, others as many as clients can one by one)")
	f.DurationVar(&p.Duration, "duration", 0, "length of each measurement (default 30s, with --quick 6s)")
	f.IntVar(&p.Repetitions, "repetitions", 0, "how often each test is repeated (default 3, with --quick 1)")
	f.BoolVar(&p.Quick, "quick", false, "short and once: to see that it works, not to trust the numbers")
	f.BoolVar(&p.Sweep, "sweep", false, "also each setting of the tuned test by itself (redmine)")
	f.StringVar(&p.Device, "device", "", "block device for test 2 as well; EVERYTHING ON IT IS LOST")
	f.StringSliceVar(&p.Tests, "tests", nil, "tests to run (default: all): "+strings.Join(testKeys(), ", "))
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	if _, err := workloadOf(p.Workload); err != nil {
		return fmt.Errorf("--workload: %w", err)
	}
	switch {
	case p.Sweep && p.Workload != (redmine{}).name():
		return fmt.Errorf("--sweep is for workload %s", redmine{}.name())
	case p.Rate < 0:
		return fmt.Errorf("--rate %d: want at least 0", p.Rate)
	case p.Duration != 0 && p.Duration < time.Second || p.Duration > time.Hour:
		return fmt.Errorf("--duration %v: want 1s to 1h", p.Duration)
	case p.Repetitions < 0 || f.Changed("repetitions") && p.Repetitions == 0:
		return fmt.Errorf("--repetitions %d: want at least 1", p.Repetitions)
	}
	for _, t := range p.Tests {
		if !slices.Contains(testKeys(), t) {
			return fmt.Errorf("--tests %s: want %s", t, strings.Join(testKeys(), ", "))
		}
	}
	if p.Device == "" {
		if slices.Contains(p.Tests, keyDevice) {
			return fmt.Errorf("--tests %s needs --device", keyDevice)
		}
		return nil
	}
	return checkDevice(p.Device)
}

// checkDevice refuses anything but an unused block device.
func checkDevice(device string) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return fmt.Errorf("--device %s: %w", device, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return fmt.Errorf("--device %s: not a block device", device)
	}
	f, err := os.OpenFile(device, os.O_RDWR|os.O_EXCL, 0) // open(2): fails if it is mounted or part of something
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("--device %s: in use", device)
	}
	if err != nil {
		return fmt.Errorf("--device %s: %w", device, err)
	}
	return f.Close()
}

// cases are the tests to run.
func (p Params) cases(w workload) []Case {
	cases := slices.DeleteFunc(allCases(w), func(c Case) bool {
		return len(p.Tests) > 0 && !slices.Contains(p.Tests, c.Key) || c.Key == keyDevice && p.Device == ""
	})
	if p.Sweep {
		cases = append(cases, sweep()...)
	}
	return cases
}

func (p Params) withDefaults() (Params, error) {
	if p.Repetitions == 0 {
		p.Repetitions = 3
		if p.Quick {
			p.Repetitions = 1
		}
	}
	if p.Rate == 0 && p.Workload == (redmine{}).name() {
		p.Rate = 2000
	}
	if p.Duration == 0 {
		p.Duration = 30 * time.Second
		if p.Quick {
			p.Duration = 6 * time.Second
		}
	}
	if p.Wangell == "" {
		var err error
		if p.Wangell, err = onenode.FindWangell(); err != nil {
			return p, err
		}
	}
	needs := map[string]string{"iostat": "sysstat", "mkfs.ext4": "e2fsprogs", "mkfs.btrfs": "btrfs-progs"}
	switch p.Workload {
	case fio{}.name():
		needs["fio"] = "fio"
	case pgbench{}.name():
		needs["pgbench"] = "postgresql"
	}
	for program, debian := range needs {
		if _, err := exec.LookPath(program); err != nil {
			return p, fmt.Errorf("needs %s: apt-get install %s", program, debian)
		}
	}
	return p, nil
}

// containerds are the programs that may have a snapshotter: some are built without some of them.
func (p Params) containerds() []string {
	if p.Containerd == "" {
		return []string{"containerd"}
	}
	return []string{p.Containerd, "containerd"}
}

// env is the environment in which the instance finds its containerd.
func (p Params) env() []string {
	if p.Containerd == "" {
		return nil
	}
	return []string{"PATH=" + filepath.Dir(p.Containerd) + ":" + os.Getenv("PATH")}
}
