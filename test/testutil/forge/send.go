// SPDX-License-Identifier: Apache-2.0

package forge

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// defaultBatch is small enough for an even rate.
const defaultBatch = 1024

// priority is the nice value of the sending threads: a network card does not wait for the programs that it
// interrupts.
const priority = -15

// maxDebt is how far a flood that has fallen behind its rate catches up.
const maxDebt = 100 * time.Millisecond

// senders is the number of threads that send. Each batch ends with a grace period of RCU, some 20 ms in which its
// thread sleeps and others send.
func senders() int { return 8 * runtime.NumCPU() }

// run sends a batch.
func (s *SYNs) run(batch int) error {
	for {
		// The context is a struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
		_, err := s.program.Run(&ebpf.RunOptions{
			Data: s.frame, Context: [6]uint32{1: uint32(len(s.frame)), 3: s.device}, Repeat: uint32(batch),
			Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// pace tells threads when to send how many.
type pace struct {
	mu    sync.Mutex
	left  int // yet to be handed out
	batch int
	rate  int       // a second; 0 without limit
	due   time.Time // of the next batch; zero before the first
	sent  int
}

// next waits until the next batch is due and returns its size, which is 0 once nothing is left to send.
func (p *pace) next(ctx context.Context) (batch int) {
	p.mu.Lock()
	batch = min(p.batch, p.left)
	now := time.Now()
	if oldest := now.Add(-maxDebt); p.due.IsZero() {
		p.due = now
	} else if p.due.Before(oldest) {
		p.due = oldest
	}
	due := p.due
	p.left -= batch
	if p.rate > 0 {
		p.due = due.Add(time.Duration(float64(batch) / float64(p.rate) * float64(time.Second)))
	}
	p.mu.Unlock()
	wait := due.Sub(now)
	if p.rate == 0 {
		wait = 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return 0
	case <-timer.C:
	}
	if ctx.Err() != nil {
		return 0
	}
	return batch
}

func (p *pace) done(batch int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent += batch
}

// stop lets no thread begin another batch.
func (p *pace) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = 0
}

// inThreads runs f on n threads of their own, in the network namespace of the calling thread.
func inThreads(n int, f func() error) error {
	ns, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open the thread's network namespace: %w", err)
	}
	defer ns.Close()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with its goroutine
			if err := netns.Set(ns); err != nil {
				errs[i] = fmt.Errorf("enter the network namespace of the flood: %w", err)
				return
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), priority); err != nil {
				errs[i] = fmt.Errorf("raise the priority of the flood: %w", err)
				return
			}
			errs[i] = f()
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// SpreadQueues gives a veth a receive queue for each processor, so that all of them handle its frames at once, as with
// most network cards. The device is in the calling thread's network namespace.
func SpreadQueues(device string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("spread the queues of %s: %w", device, err)
	}
	defer e.Close()
	channels, err := e.GetChannels(device)
	if err != nil {
		return fmt.Errorf("read the queues of %s: %w", device, err)
	}
	channels.RxCount = min(channels.MaxRx, uint32(runtime.NumCPU()))
	if _, err := e.SetChannels(device, channels); err != nil {
		return fmt.Errorf("give %s %d receive queues: %w", device, channels.RxCount, err)
	}
	return nil
}
