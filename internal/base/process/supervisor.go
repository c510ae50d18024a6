// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Supervisor restarts a process whenever it exits. The fields are not changed once Run is called.
type Supervisor struct {
	// Start starts the process and returns once it works. It stops what it started when ctx is cancelled.
	Start func(ctx context.Context) (*Process, error)
	// FirstPause is the pause before a restart. It doubles up to LongestPause, and is the first one again
	// after a process that lived longer than Stable.
	FirstPause, LongestPause, Stable time.Duration
	// Exited is called when the process has exited, with the pause before it is started again.
	Exited func(p *Process, pause time.Duration)
	// Failed is called when a start has failed, with the pause before the next.
	Failed func(err error, pause time.Duration)

	mu      sync.Mutex
	process *Process
}

// Process returns the process that runs now; nil while it is being restarted.
func (s *Supervisor) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (s *Supervisor) set(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
}

// Run watches p, which runs already, and restarts it until ctx is cancelled. The process that runs then goes on:
// Process returns it, and the caller stops or closes it. The caller starts the first process, and decides what to do
// if that fails; later failures are retried for ever.
func (s *Supervisor) Run(ctx context.Context, p *Process) {
	s.set(p)
	backoff := wait.Backoff{Duration: s.FirstPause, Factor: 2, Cap: s.LongestPause, Steps: math.MaxInt}
	pauses := backoff
	for {
		begin := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-p.Ended():
		}
		s.set(nil)
		if time.Since(begin) > s.Stable {
			pauses = backoff
		}
		pause := pauses.Step()
		s.Exited(p, pause)
		p.Close()
		if p = s.restart(ctx, &pauses, pause); p == nil {
			return
		}
		s.set(p)
	}
}

// restart starts the process after the pause, and again after each failure; nil when ctx is cancelled.
func (s *Supervisor) restart(ctx context.Context, pauses *wait.Backoff, pause time.Duration) *Process {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		p, err := s.Start(ctx)
		if err == nil {
			return p
		}
		if ctx.Err() != nil {
			return nil
		}
		pause = pauses.Step()
		s.Failed(err, pause)
	}
}
