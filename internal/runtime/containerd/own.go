// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"wangell.loutres.me/internal/process"
)

// Limits of an own containerd.
const (
	ownAnswer       = 30 * time.Second       // for its first answer
	ownStop         = 10 * time.Second       // between SIGTERM and SIGKILL
	ownFirstPause   = 100 * time.Millisecond // before a restart; doubles up to ownLongestPause
	ownLongestPause = 2 * time.Second
	ownStable       = 10 * time.Second // after a life of this length the pause is the first one again
	ownLogLimit     = 10 << 20         // bytes; a longer log is emptied at the next start
)

// ownPoll is the interval at which the socket of a starting containerd is tried.
const ownPoll = 10 * time.Millisecond

// OwnConfig says where an own containerd keeps its files.
type OwnConfig struct {
	// StateDir is for what survives a reboot: images and containers in containerd/, messages in logs/containerd.log.
	StateDir string
	// RunDir is for what does not: the socket, the configuration and the state of running containers, in containerd/.
	RunDir string
	// Log receives a record whenever containerd exits and is restarted.
	Log *slog.Logger
}

// Own is a containerd that belongs to this instance. It has a process group of its own and outlives this process; the
// next StartOwn finds and uses it.
type Own struct {
	cfg        OwnConfig
	found      bool // started by an earlier process
	supervisor process.Supervisor
	cancel     context.CancelFunc // of the supervisor
	done       chan struct{}      // closed when the supervisor has returned
}

// StartOwn returns once the instance's own containerd answers: the one that an earlier process left, or a new one. From
// then on it is restarted whenever it exits, until Stop, Release or Return. The error says what to install if
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
	o.supervisor = process.Supervisor{
		Start: o.start, FirstPause: ownFirstPause, LongestPause: ownLongestPause, Stable: ownStable,
		Exited: func(p *process.Process, pause time.Duration) {
			cfg.Log.Error("containerd has exited; it is restarted, and pods keep running", "pid", p.PID(), "in", pause)
		},
		Failed: func(err error, pause time.Duration) {
			cfg.Log.Error("containerd cannot be restarted", "error", err, "next try in", pause)
		},
	}
	supervised, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	go func() {
		defer close(o.done)
		o.supervisor.Run(supervised, p)
	}()
	return o, nil
}

// Address returns the path of the socket.
func (o *Own) Address() string { return OwnSocket(o.cfg.RunDir) }

// PID returns the process id of containerd; 0 while it is being restarted.
func (o *Own) PID() int {
	if p := o.supervisor.Process(); p != nil {
		return p.PID()
	}
	return 0
}

// Release ends the supervision and leaves containerd running.
func (o *Own) Release() {
	if p := o.unwatch(); p != nil {
		p.Close()
	}
}

// Return restores what StartOwn found: a containerd that ran before keeps running, one that was started is stopped. Its
// folders stay, because something may be mounted in them.
func (o *Own) Return() error {
	if o.found {
		o.Release()
		return nil
	}
	return o.end()
}

// Stop stops containerd with SIGTERM, after 10 s with SIGKILL, and removes its folder in RunDir. Containers keep
// running.
func (o *Own) Stop() error {
	if err := o.end(); err != nil {
		return err
	}
	if err := UnmountBelow(o.dir()); err != nil {
		return err
	}
	return os.RemoveAll(o.dir())
}

// end stops containerd if it runs.
func (o *Own) end() error {
	if p := o.unwatch(); p != nil {
		if err := p.Stop(ownStop); err != nil {
			return fmt.Errorf("stop own containerd: %w", err)
		}
	}
	return nil
}

// unwatch ends the supervision and returns the process; nil if there is none.
func (o *Own) unwatch() *process.Process {
	o.cancel()
	<-o.done
	return o.supervisor.Process()
}

// RemoveOwn removes the images, and whatever else a stopped own containerd has kept, from the state folder dir.
func RemoveOwn(dir string) error {
	root := OwnRoot(dir)
	if err := UnmountBelow(root); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

func (o *Own) dir() string { return filepath.Join(o.cfg.RunDir, "containerd") }

func (o *Own) configFile() string { return filepath.Join(o.dir(), "config.toml") }

func (o *Own) pidFile() string { return filepath.Join(o.dir(), "pid") }

// Plugins for disabled_plugins in a configuration of containerd.
const (
	// PluginsOfCRI are the names of the CRI plugin in 1.x and 2.x, and what only it uses.
	PluginsOfCRI = `
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.nri.v1.nri",`
	// SparePlugins are those that neither pods nor pulls need. Without them containerd starts sooner.
	SparePlugins = `
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",`
)

// ownConfig is the configuration in version 2, which containerd 1.3 to 2.x read.
const ownConfig = `version = 2
root = %q
state = %q
disabled_plugins = [` + PluginsOfCRI + SparePlugins + `
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
	text := fmt.Sprintf(ownConfig, OwnRoot(o.cfg.StateDir), filepath.Join(o.dir(), "state"), o.Address(),
		o.Address()+".ttrpc")
	return os.WriteFile(o.configFile(), []byte(text), 0o600)
}

// find returns the containerd that an earlier process left; nil if there is none. One that runs but does not answer is
// stopped: two of them cannot share a root.
func (o *Own) find(ctx context.Context) (*process.Process, error) {
	text, err := os.ReadFile(o.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, nil // half written by a process that was killed before it had started containerd
	}
	p, err := process.Open(pid)
	if err != nil {
		return nil, nil
	}
	// Read while the pidfd is open, so that the number cannot mean another process.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(command), o.configFile()) {
		p.Close()
		return nil, nil
	}
	if err := o.awaitAnswer(ctx, p); err != nil {
		o.cfg.Log.Warn("own containerd does not answer; it is restarted", "pid", pid, "error", err)
		if err := p.Stop(ownStop); err != nil {
			return nil, fmt.Errorf("stop own containerd that does not answer: %w", err)
		}
		return nil, nil
	}
	return p, nil
}

// start starts containerd and returns once it answers.
func (o *Own) start(ctx context.Context) (*process.Process, error) {
	logName := filepath.Join(o.cfg.StateDir, "logs", "containerd.log")
	if fileSize(logName) > ownLogLimit {
		_ = os.Truncate(logName, 0)
	}
	log, err := os.OpenFile(logName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	if err := removeOrphans(ctx, o.cfg.StateDir); err != nil {
		o.cfg.Log.Warn("folders of snapshots that containerd has no record of cannot be removed", "error", err)
	}
	cmd := exec.Command("containerd", "--config", o.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p, err := process.Start(cmd, nil)
	if err != nil {
		return nil, fmt.Errorf("start own containerd: %w", err)
	}
	err = os.WriteFile(o.pidFile(), []byte(strconv.Itoa(p.PID())+"\n"), 0o600)
	if err == nil {
		err = o.awaitAnswer(ctx, p)
	}
	if err != nil {
		err = fmt.Errorf("start own containerd: %w; %s ends with: %s", err, logName, LastLine(logName, begin))
		return nil, errors.Join(err, p.Stop(ownStop))
	}
	return p, nil
}

// awaitAnswer returns once the socket answers, or with an error if p exits or ownAnswer passes before.
func (o *Own) awaitAnswer(ctx context.Context, p *process.Process) error {
	ctx, cancel := context.WithTimeout(ctx, ownAnswer)
	defer cancel()
	for {
		_, err := Dial(ctx, o.Address())
		if err == nil {
			return nil
		}
		// The kernel has no event for a Unix socket that begins to listen; containerd takes about 100 ms.
		select {
		case <-p.Ended():
			return errors.New("it exited")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(ownPoll):
		}
	}
}
