// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"wangell.loutres.me/internal/images/erofs"
)

// OwnConfig says where an own containerd keeps its files.
type OwnConfig struct {
	// StateDir is for what survives a reboot: images and containers in containerd/, messages in logs/containerd.log.
	StateDir string
	// RunDir is for the rest: the socket, the configuration and the state of running containers, in containerd/.
	RunDir string
	// InsecureRegistries are as in Config, for the snapshotter of lazy pulls.
	InsecureRegistries []string
	// Log receives a record whenever containerd exits and is restarted.
	Log *slog.Logger
}

// Own is a containerd that belongs to this instance. It outlives this process; the next StartOwn finds and uses it.
type Own struct {
	cfg        OwnConfig
	containerd lasting
	lazy       ownSnapshotter
}

// StartOwn returns once the instance's own containerd answers: the one of an earlier process, or a new one. From then
// on it is restarted whenever it exits, until Stop, Release or Return. The error says what to install if containerd,
// its shim or runc is missing.
func StartOwn(ctx context.Context, cfg OwnConfig) (*Own, error) {
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is not in $PATH: apt install containerd runc", name)
		}
	}
	o := &Own{cfg: cfg}
	o.lazy = ownSnapshotter{
		root: LazyRoot(cfg.StateDir), socket: filepath.Join(o.dir(), "lazy.sock"), pid: filepath.Join(o.dir(), "lazy.pid"),
		logs: filepath.Join(cfg.StateDir, "logs", snapshotterProgram+".log"), insecure: cfg.InsecureRegistries, log: cfg.Log,
	}
	if err := o.writeConfig(ctx); err != nil {
		return nil, fmt.Errorf("configure own containerd: %w", err)
	}
	o.containerd = lasting{
		name: "containerd", argv: []string{"containerd", "--config", o.configFile()}, key: o.configFile(),
		pid: filepath.Join(o.dir(), "pid"), logs: filepath.Join(cfg.StateDir, "logs", "containerd.log"),
		effect: ", and pods keep running", log: cfg.Log,
		before: func(ctx context.Context) {
			if err := removeOrphans(ctx, cfg.StateDir); err != nil {
				cfg.Log.Warn("folders of snapshots that containerd has no record of cannot be removed", "error", err)
			}
		},
		answers: func(ctx context.Context) error {
			_, err := Dial(ctx, o.Address())
			return err
		},
	}
	return o, o.containerd.begin(ctx)
}

// Address returns the path of the socket.
func (o *Own) Address() string { return OwnSocket(o.cfg.RunDir) }

// PID returns the process id of containerd; 0 while it is being restarted.
func (o *Own) PID() int {
	if p := o.containerd.supervisor.Process(); p != nil {
		return p.PID()
	}
	return 0
}

// Release ends the supervision and leaves containerd running.
func (o *Own) Release() {
	o.containerd.release()
	o.lazy.release()
}

// Return restores the state that StartOwn found: a containerd that ran before keeps running, a new one is stopped. Its
// folders stay, because something may be mounted in them.
func (o *Own) Return() error {
	if o.containerd.found {
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

// end stops containerd, and then what it uses.
func (o *Own) end() error {
	return errors.Join(o.containerd.end(), o.lazy.end())
}

// RemoveOwn removes the images and all other files of a stopped own containerd from the state folder dir.
func RemoveOwn(dir string) error {
	root := OwnRoot(dir)
	if err := UnmountBelow(root); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

func (o *Own) dir() string { return filepath.Join(o.cfg.RunDir, "containerd") }

func (o *Own) configFile() string { return OwnConfigFile(o.cfg.RunDir) }

// OwnConfigFile returns the path of the configuration of an own containerd, in the run folder dir.
func OwnConfigFile(dir string) string { return filepath.Join(dir, "containerd", "config.toml") }

// OwnLock returns the path of the file in the state folder dir that a running own containerd has locked (flock(2)).
func OwnLock(dir string) string {
	return filepath.Join(OwnRoot(dir), "io.containerd.metadata.v1.bolt", "meta.db")
}

// Plugins for disabled_plugins in a configuration of containerd.
const (
	// PluginsOfCRI are the CRI plugins of containerd 1.x and 2.x, and the plugins that only they use.
	PluginsOfCRI = `
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.nri.v1.nri",`
	// SparePlugins are plugins that neither pods nor pulls need. Without them containerd starts sooner. The
	// snapshotters among them need settings of the machine; others skip themselves where they do not work.
	SparePlugins = `
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile",`
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
[proxy_plugins.%s]
  type = "snapshot"
  address = %q
`

func (o *Own) writeConfig(ctx context.Context) error {
	for _, dir := range []string{o.dir(), OwnRoot(o.cfg.StateDir)} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(o.cfg.StateDir, "logs"), 0o750); err != nil {
		return err
	}
	text := fmt.Sprintf(ownConfig, OwnRoot(o.cfg.StateDir), filepath.Join(o.dir(), "state"), o.Address(),
		o.Address()+".ttrpc", lazySnapshotter, o.lazy.socket)
	// Without this setting, the snapshotter erofs works, but slowly: every file is written, and then copied into an
	// image.
	if maker, err := erofs.Find(ctx, os.Getenv("PATH")); err == nil {
		version, err := ProgramVersion(ctx, "containerd")
		if err != nil {
			return err
		}
		if erofs.Supported(version) { // others refuse the configuration
			text += maker.Config()
		}
	}
	return os.WriteFile(o.configFile(), []byte(text), 0o600)
}

// ProgramVersion returns the version of a containerd program, such as 2.4.2, without a distribution's suffix.
func ProgramVersion(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	fields := strings.Fields(string(out)) // containerd PACKAGE VERSION REVISION
	if len(fields) < 3 {
		return "", fmt.Errorf("%s --version: %q names no version", program, out)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), "~")
	return version, nil
}
