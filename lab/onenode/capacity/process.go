// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"fmt"
	"time"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/report"
)

// cpuSeconds returns the processor time that a process has used.
func cpuSeconds(pid int) (float64, error) {
	p, err := process.Open(pid)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	used, err := p.CPU()
	return used.Seconds(), err
}

// settle waits until processes together use less than 2 % of a core over a second: then their start is over.
func settle(ctx context.Context, processes map[int]*Usage) error {
	ctx, cancel := context.WithTimeout(ctx, onenode.SettleTimeout)
	defer cancel()
	used := func() (sum float64, err error) {
		for pid := range processes {
			s, err := cpuSeconds(pid)
			if err != nil {
				return 0, err
			}
			sum += s
		}
		return sum, nil
	}
	before, err := used()
	for err == nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("wait until daemon and controller are idle: %w", ctx.Err())
		}
		var after float64
		if after, err = used(); err == nil && after-before < 0.02 {
			return nil
		}
		before = after
	}
	return err
}

// measureIdle measures the usage of processes during a time without requests.
func measureIdle(ctx context.Context, idle time.Duration, processes map[int]*Usage) error {
	if err := settle(ctx, processes); err != nil {
		return err
	}
	before := map[int]float64{}
	for pid := range processes {
		var err error
		if before[pid], err = cpuSeconds(pid); err != nil {
			return err
		}
	}
	begin := time.Now()
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	elapsed := time.Since(begin).Seconds()
	for pid, usage := range processes {
		after, err := cpuSeconds(pid)
		if err != nil {
			return err
		}
		usage.CPU = 100 * (after - before[pid]) / elapsed
		if usage.Resident, err = report.Memory(pid, "VmRSS"); err == nil {
			usage.Anonymous, err = report.Memory(pid, "RssAnon")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
