// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/debimage"
)

const (
	// atOnce is how many services are started at once, and how many are asked at once in a storm.
	atOnce, inStorm = 8, 100
	// alone is how many pods are asked while all others are frozen.
	alone = 50
)

// cpuSpan is how long the processor use is measured, cpuQuick with Params.Quick.
const cpuSpan, cpuQuick = time.Minute, 2 * time.Second

// cpuSettles is how long it takes until what starting and freezing pods has caused is over, such as giving their memory
// back.
const cpuSettles = 30 * time.Second

// measureSleepers freezes many pods at once.
func measureSleepers(ctx context.Context, p Params, out lab.Output, s *Samples) (err error) {
	if p.Sleepers == 0 {
		return nil
	}
	names, at, err := newHellos(ctx, p, p.Sleepers, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	k := &Sleepers{Pods: p.Sleepers, Load: report.LoadAverage()}
	if err := at.askAll(ctx, names, func(done int) { out.Progress(done, len(names)) }); err != nil {
		return err
	}
	if err := at.frozen(ctx, names...); err != nil {
		return err
	}
	services, err := at.Control.Status(ctx)
	if err != nil {
		return err
	}
	for _, service := range services {
		for _, pod := range service.Pods {
			resident, swapped, err := at.memory(pod.ID)
			if err != nil {
				return err
			}
			k.Resident, k.Swapped = k.Resident+resident, k.Swapped+swapped
		}
	}
	found, err := at.Processes()
	if err != nil {
		return err
	}
	k.Shims = shares(found.Others)
	span := cpuSpan
	if p.Quick {
		span = cpuQuick
	} else if err := lab.Sleep(ctx, cpuSettles); err != nil {
		return err
	}
	if err := at.measureCPU(ctx, k, span); err != nil {
		return err
	}
	for i := range min(alone, len(names)) {
		if err := lab.Sleep(ctx, quiet); err != nil {
			return err
		}
		took, err := at.askOne(ctx, names[i])
		if err != nil {
			return err
		}
		k.Thaw = append(k.Thaw, took)
	}
	k.Storm, err = at.storm(ctx, names[:min(inStorm, len(names))])
	s.Sleepers = k
	return err
}

// newHellos starts an instance with n services of the hello image, which freeze after a second.
func newHellos(ctx context.Context, p Params, n int, reclaim bool) (names []string, at *place, err error) {
	var manifests []string
	for i := range n {
		names = append(names, fmt.Sprintf("s%05d", i))
		manifests = append(manifests, hello(names[i], freezing(reclaim)))
	}
	zram := ""
	if reclaim {
		zram = "4Gi"
	}
	at, err = newPlace(ctx, p.Wangell, zram, []*debimage.Recipe{}, manifests)
	return names, at, err
}

// askOne makes one request and returns the time to the first byte, in milliseconds.
func (p *place) askOne(ctx context.Context, name string) (float64, error) {
	t, err := get(ctx, p.Net.Client(), p.addresses[name])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return report.Milliseconds(t.FirstByte), nil
}

// askAll makes one request to each service, a few at a time.
func (p *place) askAll(ctx context.Context, names []string, progress func(done int)) error {
	free := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	done := 0
	for _, name := range names {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			_, err := p.askOne(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if done++; err != nil && len(errs) == 0 {
				errs = append(errs, err)
			}
			progress(done)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// storm asks services all at once, each on a new connection, once all of them are frozen.
func (p *place) storm(ctx context.Context, names []string) (took []float64, err error) {
	calls := make([]probe.Call, len(names))
	defer func() {
		for _, c := range calls {
			if c.Socket != nil {
				c.Socket.Close()
			}
		}
	}()
	for i, name := range names {
		s, err := p.Net.Client().Socket()
		if err != nil {
			return nil, err
		}
		calls[i] = probe.Call{Socket: s, Address: p.addresses[name], Request: probe.Get(p.addresses[name])}
	}
	if err := errors.Join(p.frozen(ctx, names...), lab.Sleep(ctx, quiet)); err != nil {
		return nil, err
	}
	timings, errs := probe.Storm(ctx, calls)
	for i, c := range calls {
		if errs[i] == nil {
			errs[i] = probe.Finish(c.Socket)
		}
		took = append(took, report.Milliseconds(timings[i].FirstByte))
	}
	return took, errors.Join(errs...)
}

// measureCPU measures the processor use of the instance while nothing happens.
func (p *place) measureCPU(ctx context.Context, k *Sleepers, span time.Duration) error {
	found, err := p.Processes()
	if err != nil {
		return err
	}
	begin, parts, all := time.Now(), cpuSeconds(found.Parts), cpuSeconds(found.All())
	if err := lab.Sleep(ctx, span); err != nil {
		return err
	}
	k.Seconds = time.Since(begin).Seconds()
	k.CPU = 100 * (cpuSeconds(found.All()) - all) / k.Seconds
	k.Parts = 100 * (cpuSeconds(found.Parts) - parts) / k.Seconds
	return nil
}

// shares returns the memory of processes in MB, where pages that several share are divided among them (Pss of
// proc_pid_smaps(5)). One that has ended has none.
func shares(pids []int) (sum float64) {
	for _, pid := range pids {
		kb := strings.Fields(report.Field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss"))
		if len(kb) > 0 {
			n, _ := strconv.ParseFloat(kb[0], 64) // the kernel writes digits
			sum += n * 1024 / mb
		}
	}
	return sum
}

// cpuSeconds returns the processor time that processes have used (proc_pid_stat(5)). One that has ended has none.
func cpuSeconds(pids []int) (sum float64) {
	for _, pid := range pids {
		fields, err := process.Stat(pid)
		if err != nil || len(fields) < process.StatUserTime+2 {
			continue
		}
		for _, field := range fields[process.StatUserTime : process.StatUserTime+2] {
			ticks, _ := strconv.ParseFloat(field, 64) // the kernel writes digits
			sum += ticks * process.Tick.Seconds()
		}
	}
	return sum
}
