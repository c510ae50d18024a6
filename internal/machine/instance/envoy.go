// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/process"
)

// socketDir returns the folder for Envoy's sockets.
func (c Config) socketDir() string { return filepath.Join(c.RunDir, "envoy") }

// envoySocket is the socket at which the daemon configures Envoy.
func (c Config) envoySocket() string { return filepath.Join(c.socketDir(), envoySocketName) }

// envoyWish is what services want of Envoy.
type envoyWish struct {
	any         bool // it runs
	transparent bool // it connects to pods from the addresses of clients
}

// envoyWishOf returns what services want of Envoy.
func envoyWishOf(list []*v1alpha1.WangellService) (w envoyWish) {
	for _, s := range list {
		if s.Spec.BalancesRequests() {
			w.any = true
			w.transparent = w.transparent || s.Spec.Balancing.ClientAddress == v1alpha1.ClientAddressTransparent
		}
	}
	return w
}

// want starts Envoy, or ends it after a while. An Envoy that lacks rights it needs is replaced.
func (p *proxy) want(w envoyWish) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted, p.transparent = w.any, w.transparent
	if p.linger != nil {
		p.linger.Stop()
		p.linger = nil
	}
	switch {
	case w.any && p.current == nil:
		p.start()
	case w.transparent && !p.current.transparent:
		p.current.retire()
		p.start()
	case w.transparent && p.opaque != "":
		p.hidden(p.opaque)
	case !w.any && p.current != nil:
		p.linger = time.AfterFunc(envoyLinger, p.stopUnwanted)
	}
}

// stopUnwanted ends Envoy if it is still not wanted.
func (p *proxy) stopUnwanted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted && p.current != nil {
		p.current.retire()
		p.current = nil
	}
}

// start starts Envoy in the background. p.mu is held.
func (p *proxy) start() {
	program, err := findEnvoy(p.path)
	if err != nil {
		if !p.missing {
			p.log.Error("services with balancing.level: Request balance connections instead", "error", err)
		}
		p.missing = true
		return
	}
	if p.all == nil {
		p.all, p.cancel = context.WithCancel(context.Background())
	}
	r := &envoyRun{program: program, transparent: p.transparent, launched: stateOf(program)}
	r.leave, r.retire = context.WithCancel(p.all)
	p.current = r
	all := p.all
	p.running.Go(func() {
		if err := p.keep(all, r); err != nil {
			p.log.Error("unless another Envoy runs, services with balancing.level: Request balance connections", "error", err)
		}
	})
	p.running.Go(func() {
		launched := func() fileState { return p.launchedBy(r) }
		for awaitChange(r.leave, program, programLooks, launched) {
			p.replace(r)
		}
	})
}

// replace starts another Envoy. The previous one keeps its clients until they have left.
func (p *proxy) replace(r *envoyRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != r {
		return // it is not wanted any more
	}
	if r.launched == stateOf(r.program) {
		return // it was restarted meanwhile, and runs the new program
	}
	p.log.Info("the program of Envoy has changed: another one takes over new clients", "program", r.program)
	r.retire()
	p.start()
}

// stop ends Envoy and waits for its end.
func (p *proxy) stop() {
	p.mu.Lock()
	p.wanted = false
	if p.linger != nil {
		p.linger.Stop()
	}
	if p.cancel != nil {
		p.cancel()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// findEnvoy returns the path of Envoy's program.
func findEnvoy(path string) (string, error) {
	if path != EnvoyAuto {
		return path, nil
	}
	found, err := exec.LookPath("envoy")
	if err != nil {
		return "", errors.New("there is no envoy in PATH: install it, or name the program with --envoy")
	}
	return filepath.Abs(found)
}

// keep runs an Envoy, and again whenever it exits, until its clients have left after it was retired, or ctx is
// cancelled. The kernel ends Envoy with the thread that has started it (PR_SET_PDEATHSIG), so this goroutine keeps its
// thread, which also enters the network namespace.
func (p *proxy) keep(ctx context.Context, r *envoyRun) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n, err := p.nets.TakeNetwork()
	if err != nil {
		return fmt.Errorf("network for Envoy: %w", err)
	}
	defer func() { err = errors.Join(err, p.nets.ReleaseNetwork(n.Name)) }()
	if err := errors.Join(os.MkdirAll(p.dir, 0o700), os.Chown(p.dir, envoyUser, envoyUser)); err != nil {
		return fmt.Errorf("folder for Envoy's sockets: %w", err)
	}
	defer os.Remove(filepath.Join(p.dir, adminSocketName(n)))
	created := time.Now()
	start := func(ctx context.Context) (*process.Process, error) {
		if err := p.awaitServer(ctx); err != nil {
			return nil, err
		}
		return p.launch(r, n, created)
	}
	first, err := start(r.leave)
	if err != nil && r.leave.Err() != nil {
		return nil // it is not wanted any more
	}
	if err != nil {
		return err
	}
	restart := func(err error, pause time.Duration) {
		if r.leave.Err() == nil {
			p.log.Error("Envoy has exited; it is restarted", "error", err, "in", pause)
		}
	}
	s := process.Supervisor{
		Start: start, FirstPause: firstPause, LongestPause: longestPause, Stable: longestPause,
		Exited: func(e *process.Process, pause time.Duration) { restart(e.Err(), pause) },
		Failed: restart,
	}
	s.Run(r.leave, first)
	running := s.Process()
	if running == nil {
		return nil
	}
	awaitDrained(ctx, running)
	return running.Stop(childGrace)
}

// serverLooks is how often awaitServer looks.
const serverLooks = 20 * time.Millisecond

// awaitServer waits until the daemon has made its socket. Otherwise Envoy would retry its reports to the missing
// server only after five seconds.
func (p *proxy) awaitServer(ctx context.Context) error {
	for {
		if _, err := os.Stat(filepath.Join(p.dir, envoySocketName)); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(serverLooks):
		}
	}
}
