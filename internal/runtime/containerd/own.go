// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The times of an own containerd: how long it may take to answer and to stop, and the pause before it is started
// again, which doubles from the first to the longest.
const (
	ownAnswer       = 30 * time.Second
	ownStop         = 10 * time.Second
	ownFirstPause   = 100 * time.Millisecond
	ownLongestPause = 2 * time.Second
	ownStable       = 10 * time.Second // after living so long, the pause is the first again
	ownLogLimit     = 10 << 20
)

// OwnConfig says where an own containerd lives.
type OwnConfig struct {
	// StateDir: images and containers are in its folder containerd, messages in its file logs/containerd.log.
	StateDir string
	// RunDir: the socket, the configuration and the state of running containers are in its folder containerd.
	RunDir string
	// Log is told when containerd ends and is started again.
	Log *slog.Logger
}

// Own is a containerd that belongs to this instance. It has a process group of its own and outlives this
// process, which the next Own then finds and uses.
type Own struct {
	cfg    OwnConfig
	found  bool // an earlier process had started it
	cancel context.CancelFunc
	done   chan struct{} // closed when the supervisor has returned

	mu      sync.Mutex
	process *process
}

// StartOwn uses the containerd that an earlier process left, or starts one, and returns when it answers. From
// then on it is started again whenever it ends, until Stop or Release. The error says what to install if
// containerd, its shim or runc is missing.
func StartOwn(ctx context.Context, cfg OwnConfig) (*Own, error) {
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is not in $PATH: apt install containerd runc", name)
		}
	}
	o := &Own{cfg: cfg, done: make(chan struct{})}
	if err := o.writeConfig(); err != nil {
		return nil, fmt.Errorf("configure own containerd: %w", err)
	}
	p, err := o.find(ctx)
	if err != nil {
		return nil, err
	}
	if o.found = p != nil; !o.found {
		if p, err = o.start(ctx); err != nil {
			return nil, err
		}
	}
	o.process = p
	run, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	go o.supervise(run)
	return o, nil
}

// Address is the path of its socket.
func (o *Own) Address() string { return OwnSocket(o.cfg.RunDir) }

// Pid is its process now, 0 while it is being started again.
func (o *Own) Pid() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.process == nil {
		return 0
	}
	return o.process.pid
}

// Release stops watching it and lets it run.
func (o *Own) Release() {
	if p := o.unwatch(); p != nil {
		p.close()
	}
}

// Return leaves it as StartOwn found it: running, or ended. Its folders stay, because of what may be mounted in them.
func (o *Own) Return() error {
	if o.found {
		o.Release()
		return nil
	}
	return o.end()
}

// end ends it, if it runs.
func (o *Own) end() error {
	if p := o.unwatch(); p != nil {
		if err := p.stop(ownStop); err != nil {
			return fmt.Errorf("stop own containerd: %w", err)
		}
	}
	return nil
}

// unwatch ends the supervisor and returns the process, nil if there is none.
func (o *Own) unwatch() *process {
	o.cancel()
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.process
	o.process = nil
	return p
}

// Stop ends it, by SIGTERM and after 10 s by SIGKILL. Containers go on, if there are any.
func (o *Own) Stop() error {
	if err := o.end(); err != nil {
		return err
	}
	return o.removeRunDir()
}

// RemoveOwn removes the images and all else that a stopped own containerd kept below the state folder dir.
func RemoveOwn(dir string) error {
	root := OwnRoot(dir)
	if err := unmountBelow(root); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

func (o *Own) dir() string        { return filepath.Join(o.cfg.RunDir, "containerd") }
func (o *Own) configFile() string { return filepath.Join(o.dir(), "config.toml") }
func (o *Own) pidFile() string    { return filepath.Join(o.dir(), "pid") }

// removeRunDir removes the folder of the socket, once no container has anything mounted there.
func (o *Own) removeRunDir() error {
	if err := unmountBelow(o.dir()); err != nil {
		return err
	}
	return os.RemoveAll(o.dir())
}

// ownConfig is version 2, which containerd 1.3 to 2.x read. What a pod does not need is switched off, so that
// containerd starts sooner: the CRI plugin (its names in 1.x and 2.x) above all.
const ownConfig = `version = 2
root = %q
state = %q
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
]
[grpc]
  address = %q
[ttrpc]
  address = %q
[debug]
  level = "warn"
`

func (o *Own) writeConfig() error {
	for _, dir := range []string{o.dir(), OwnRoot(o.cfg.StateDir)} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(o.cfg.StateDir, "logs"), 0o750); err != nil {
		return err
	}
	text := fmt.Sprintf(ownConfig, OwnRoot(o.cfg.StateDir), filepath.Join(o.dir(), "state"), o.Address(), o.Address()+".ttrpc")
	return os.WriteFile(o.configFile(), []byte(text), 0o600)
}

// find looks for the containerd of an earlier process, nil if there is none. One that runs but does not
// answer is ended: two of them cannot share a root.
func (o *Own) find(ctx context.Context) (*process, error) {
	text, err := os.ReadFile(o.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, nil // half written by a process that was killed then: its containerd was not started
	}
	p, err := openProcess(pid)
	if err != nil {
		return nil, nil
	}
	// After the pidfd is open, so that the number cannot mean another process.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(command), o.configFile()) {
		p.close()
		return nil, nil
	}
	if err := o.awaitAnswer(ctx, p); err != nil {
		o.cfg.Log.Warn("own containerd does not answer; it is started again", "pid", pid, "error", err)
		if err := p.stop(ownStop); err != nil {
			return nil, fmt.Errorf("stop own containerd that does not answer: %w", err)
		}
		return nil, nil
	}
	return p, nil
}

// start starts containerd and waits until it answers.
func (o *Own) start(ctx context.Context) (*process, error) {
	logName := filepath.Join(o.cfg.StateDir, "logs", "containerd.log")
	if info, err := os.Stat(logName); err == nil && info.Size() > ownLogLimit {
		_ = os.Truncate(logName, 0)
	}
	log, err := os.OpenFile(logName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	defer log.Close()
	begin, err := log.Seek(0, 2)
	if err != nil {
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	cmd := exec.Command("containerd", "--config", o.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	p, err := openProcess(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reaps it; its end is seen through p
	err = os.WriteFile(o.pidFile(), []byte(strconv.Itoa(p.pid)+"\n"), 0o600)
	if err == nil {
		err = o.awaitAnswer(ctx, p)
	}
	if err != nil {
		err = fmt.Errorf("start own containerd: %w; %s ends with: %s", err, logName, lastLine(readTail(logName, begin, 2048)))
		return nil, errors.Join(err, p.stop(ownStop))
	}
	return p, nil
}

// awaitAnswer returns when the socket answers; an error if p ends or ownAnswer passes before.
func (o *Own) awaitAnswer(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, ownAnswer)
	defer cancel()
	for {
		_, err := Dial(ctx, o.Address())
		if err == nil {
			return nil
		}
		// There is no event for "a socket is listened on"; containerd needs some 100 ms.
		select {
		case <-p.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// supervise starts containerd again when it ends, until ctx ends.
func (o *Own) supervise(ctx context.Context) {
	defer close(o.done)
	pause := ownFirstPause
	for {
		o.mu.Lock()
		p := o.process
		o.mu.Unlock()
		if p != nil {
			begin := time.Now()
			select {
			case <-ctx.Done():
				return
			case <-p.ended:
			}
			if time.Since(begin) > ownStable {
				pause = ownFirstPause
			}
			o.cfg.Log.Error("own containerd ended; it is started again, running pods go on", "pid", p.pid, "in", pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, ownLongestPause)
		p, err := o.start(ctx)
		if err != nil && ctx.Err() == nil {
			o.cfg.Log.Error("own containerd does not start", "error", err, "next try in", pause)
		}
		o.mu.Lock()
		o.process = p
		o.mu.Unlock()
	}
}

// process is a process, a child or not, whose end can be waited for.
type process struct {
	pid   int
	fd    *os.File
	ended chan struct{}
}

// openProcess opens a process by pidfd (pidfd_open(2)).
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}
	raw, err := p.fd.SyscallConn()
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	go func() {
		// A pidfd is readable when its process has ended; Read waits in the poller until then, or until close.
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n == 1
		})
		if err == nil {
			close(p.ended)
		}
	}()
	return p, nil
}

func (p *process) close() { _ = p.fd.Close() }

// stop sends SIGTERM, after grace SIGKILL, and waits for the end.
func (p *process) stop(grace time.Duration) error {
	defer p.close()
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(grace):
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}

func (p *process) signal(s unix.Signal) error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}
