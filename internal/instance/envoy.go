// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/process"
	"wangell.loutres.me/internal/runtime/podnet"
)

// EnvoyAuto finds Envoy in PATH.
const EnvoyAuto = "auto"

const (
	// envoyUser is the user and group that Envoy runs as: nobody.
	envoyUser = 65534
	// envoyHeap is the memory that Envoy may use for connections and requests, in bytes.
	envoyHeap = 1 << 30
	// envoyConnections is the largest number of clients' connections.
	envoyConnections = 50_000
	// envoyLinger is how long Envoy goes on without a service that wants it, in case one wants it again.
	envoyLinger = 30 * time.Second
	// envoyDrain bounds how long an Envoy that was replaced or is not needed keeps clients' connections.
	envoyDrain = 10 * time.Minute
	// envoyGrace is how much longer it may finish requests.
	envoyGrace = 10 * time.Second
	// drainLooks is the interval of checks whether all clients have left.
	drainLooks = 500 * time.Millisecond
	// programLooks is the interval of checks whether the program has changed.
	programLooks = 2 * time.Second
)

// The files that Envoy inherits. It opens sockets below the first one, whatever the rights of the folders above.
const (
	envoyDirFD     = "/proc/self/fd/3"
	envoyProgramFD = "/proc/self/fd/4"
)

// networks gives Envoy a network of its own.
type networks interface {
	TakeNetwork() (podnet.Network, error)
	ReleaseNetwork(name string) error
}

// proxy keeps Envoy running while a service balances requests. It is a process of its own in a network namespace of
// its own, with the rights of an unprivileged user, and ends with this process. The daemon configures it. When the
// program's file changes, another Envoy is started, to which the daemon leads new clients.
type proxy struct {
	path string // of the program, EnvoyAuto, or empty: none is used
	dir  string // for sockets
	nets networks
	log  *slog.Logger

	hidden func(why string) // called if pods cannot see the addresses of clients; empty if they do

	mu          sync.Mutex
	wanted      bool
	transparent bool        // pods should see the addresses of clients
	opaque      string      // why they do not, although they should
	linger      *time.Timer // ends the process
	current     *envoyRun
	all         context.Context // ends all of them
	cancel      context.CancelFunc
	running     sync.WaitGroup
	missing     bool // it was reported that there is no Envoy
}

// envoyRun is an Envoy that is kept running.
type envoyRun struct {
	program     string
	transparent bool            // it connects to pods from the addresses of clients, if that is possible
	leave       context.Context // ended when it should end once its clients have left
	retire      context.CancelFunc
	// launched is the state of the program's file at the last launch. A restart after an exit launches whatever the
	// path then names.
	launched fileState
}

// openProgram opens the program for r, unless r has been retired.
func (p *proxy) openProgram(r *envoyRun) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := r.leave.Err(); err != nil {
		return nil, err
	}
	f, state, err := openFile(r.program)
	if err == nil {
		r.launched = state
	}
	return f, err
}

func (p *proxy) launchedBy(r *envoyRun) fileState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return r.launched
}

// socketDir returns the folder for Envoy's sockets.
func (c Config) socketDir() string { return filepath.Join(c.RunDir, "envoy") }

// envoySocket is the socket at which the daemon configures Envoy.
func (c Config) envoySocket() string { return filepath.Join(c.socketDir(), envoySocketName) }

const envoySocketName = "xds.sock"

// adminSocketName is the socket of an Envoy's administration interface.
func adminSocketName(n podnet.Network) string { return fmt.Sprintf("admin-%v.sock", n.Addr) }

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

// want starts Envoy, or ends it after a while. An Envoy without the rights that it now needs is replaced.
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
