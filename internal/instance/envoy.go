// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/envoy"
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
	// envoyLinger is how long Envoy goes on without a service that wants it, so that its last clients can leave.
	envoyLinger = 30 * time.Second
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

// proxy keeps Envoy running while a service balances requests. It is a process of its own in a network namespace of its
// own, with the rights of an unprivileged user, and ends with this process. The daemon configures it.
type proxy struct {
	path string // of the program, EnvoyAuto, or empty: none is used
	dir  string // for sockets
	nets networks
	log  *slog.Logger

	mu      sync.Mutex
	wanted  bool
	linger  *time.Timer // ends the process
	cancel  context.CancelFunc
	running sync.WaitGroup
	missing bool // it was reported that there is no Envoy
}

// socketDir returns the folder for Envoy's sockets.
func (c Config) socketDir() string { return filepath.Join(c.RunDir, "envoy") }

// envoySocket is the socket at which the daemon configures Envoy.
func (c Config) envoySocket() string { return filepath.Join(c.socketDir(), envoySocketName) }

const envoySocketName = "xds.sock"

// wantsEnvoy reports whether a service balances requests.
func wantsEnvoy(list []*v1alpha1.WangellService) bool {
	for _, s := range list {
		if s.Spec.BalancesRequests() {
			return true
		}
	}
	return false
}

// want starts Envoy, or ends it after a while.
func (p *proxy) want(wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = wanted
	if p.linger != nil {
		p.linger.Stop()
		p.linger = nil
	}
	switch {
	case wanted && p.cancel == nil:
		p.start()
	case !wanted && p.cancel != nil:
		p.linger = time.AfterFunc(envoyLinger, p.stopUnwanted)
	}
}

// stopUnwanted ends Envoy if it is still not wanted.
func (p *proxy) stopUnwanted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted && p.cancel != nil {
		p.cancel()
		p.cancel = nil
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
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.running.Go(func() {
		if err := p.keep(ctx, program); err != nil {
			p.log.Error("services with balancing.level: Request balance connections instead", "error", err)
		}
	})
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

// keep runs Envoy, and again whenever it exits, until ctx is cancelled. The kernel ends Envoy with the thread that has
// started it (PR_SET_PDEATHSIG), so this goroutine keeps its thread, which also enters the network namespace.
func (p *proxy) keep(ctx context.Context, program string) (err error) {
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
	start := func(ctx context.Context) (*process.Process, error) {
		if err := p.awaitServer(ctx); err != nil {
			return nil, err
		}
		return p.launch(program, n)
	}
	first, err := start(ctx)
	if err != nil && ctx.Err() != nil {
		return nil // it is not wanted any more
	}
	if err != nil {
		return err
	}
	restart := func(err error, pause time.Duration) {
		if ctx.Err() == nil {
			p.log.Error("Envoy has exited; it is restarted, and connections are balanced meanwhile", "error", err, "in", pause)
		}
	}
	s := process.Supervisor{
		Start: start, FirstPause: firstPause, LongestPause: longestPause, Stable: longestPause,
		Exited: func(e *process.Process, pause time.Duration) { restart(e.Err(), pause) },
		Failed: restart,
	}
	s.Run(ctx, first)
	if running := s.Process(); running != nil {
		return running.Stop(childGrace)
	}
	return nil
}

// serverLooks is how often awaitServer looks.
const serverLooks = 20 * time.Millisecond

// awaitServer waits until the daemon has made its socket. Envoy tries again only after five seconds to report to a
// server that is not there.
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

// launch starts the process in its network namespace. It must be called by a goroutine that keeps its thread.
func (p *proxy) launch(program string, n podnet.Network) (started *process.Process, err error) {
	config, err := envoy.Bootstrap(envoy.BootstrapConfig{
		Proxy:  envoy.Proxy{Addr: n.Addr, Netns: n.Netns},
		Socket: envoyDirFD + "/" + envoySocketName, Admin: envoyDirFD + "/admin.sock",
		MaxHeap: envoyHeap, MaxConnections: envoyConnections,
	})
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(p.dir)
	if err != nil {
		return nil, fmt.Errorf("folder for Envoy's sockets: %w", err)
	}
	defer dir.Close()
	file, err := os.Open(program)
	if err != nil {
		return nil, fmt.Errorf("start Envoy: %w", err)
	}
	defer file.Close()
	cmd := exec.Command(envoyProgramFD, "--config-yaml", string(config), "--disable-hot-restart", "--log-level", "warning",
		"--log-format", "%l %v", "--drain-time-s", fmt.Sprint(int(envoyLinger.Seconds())), "--drain-strategy", "immediate")
	cmd.Args[0], cmd.Env, cmd.Dir = "envoy", []string{}, "/"
	cmd.ExtraFiles = []*os.File{dir, file}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Setpgid: true,
		Credential: &syscall.Credential{Uid: envoyUser, Gid: envoyUser},
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	err = withNetns(n.Netns, func() error {
		started, err = process.Start(cmd, func() error {
			forwardEnvoyLog(stderr, p.log.With("part", "envoy"))
			if err := cmd.Wait(); err != nil {
				return err
			}
			return errors.New("exit status 0")
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start Envoy %s: %w", program, err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		files.Cur = files.Max
		_ = unix.Prlimit(started.PID(), unix.RLIMIT_NOFILE, &files, nil) // it may have exited
	}
	return started, nil
}

// withNetns calls f on this thread in a network namespace.
func withNetns(path string, f func() error) error {
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer other.Close()
	if err := netns.Set(other); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(own))
}

// forwardEnvoyLog logs what Envoy writes, each line as "level message", until it closes its end.
func forwardEnvoyLog(r io.Reader, log *slog.Logger) {
	lines := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		level, message, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		switch {
		case len(line) == 0 || strings.HasPrefix(message, "caught ENVOY_SIGTERM"): // it was asked to
		case level == "error" || level == "critical":
			log.Error(message)
		default:
			log.Warn(message)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
