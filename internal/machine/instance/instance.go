// SPDX-License-Identifier: Apache-2.0

// Package instance runs Wangell on one machine. It owns the run folder with its lock, key and sockets, starts the
// parts (containerd, controller, daemon), and removes all of it again, also what a killed instance left.
package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/machine/zram"
)

// Defaults of an instance's configuration.
const (
	DefaultRunDir         = "/run/wangell"
	DefaultStateDir       = "/var/lib/wangell"
	DefaultMetricsAddress = "127.0.0.1:9464"
)

// Default ranges of the addresses of services and of pods.
var (
	DefaultAddresses    = netip.MustParsePrefix("10.46.100.0/24")
	DefaultPodAddresses = netip.MustParsePrefix("10.46.128.0/17")
)

// How an instance finds its containerd. Any other value is the path of a socket.
const (
	ContainerdAuto = "auto" // the machine's own if it answers, else one of the instance
	ContainerdOwn  = "own"  // one that the instance starts
)

// Config is the configuration of an instance. It is saved in the run folder, so that Down removes what Up made.
type Config struct {
	// RunDir holds what ends with the instance. Each instance has its own.
	RunDir string `json:"runDir"`
	// StateDir holds what outlives the instance: images, the root of its own containerd, addresses, logs.
	StateDir string `json:"stateDir"`
	// Addresses is the range of service addresses, PodAddresses the range of pod addresses; IPv4, /8 to /30.
	Addresses    netip.Prefix `json:"addresses"`
	PodAddresses netip.Prefix `json:"podAddresses"`
	// Interfaces are the devices to which the gate is attached for clients on other machines. Default: the devices with
	// a default route.
	Interfaces []string `json:"interfaces,omitempty"`
	// XDPMode is auto, native, generic or off.
	XDPMode string `json:"xdpMode"`
	// Sizes are the sizes of the gate's tables.
	Sizes gate.Sizes `json:"sizes,omitzero"`
	// WakeBudgets limit the wakes of unproven clients; nil is the daemon's default.
	WakeBudgets *gate.WakeBudgets `json:"wakeBudgets,omitempty"`
	// NoEgress leaves pods without a way to other networks, and the machine without an nftables table.
	NoEgress bool `json:"noEgress,omitempty"`
	// ResolvConf is the resolv.conf with the resolvers that pods' questions are forwarded to. Default: the machine's.
	ResolvConf string `json:"resolvConf,omitempty"`
	// Containerd is ContainerdAuto, ContainerdOwn or the path of a socket.
	Containerd string `json:"containerd"`
	// Snapshotter is containerd's snapshotter for images and the layers of containers. Default:
	// containerd.DefaultSnapshotter.
	Snapshotter string `json:"snapshotter,omitempty"`
	// InsecureRegistries are registries that are accessed by plain HTTP.
	InsecureRegistries []string `json:"insecureRegistries,omitempty"`
	// Zram is the size of the instance's zram device for memory of frozen pods, in bytes before compression; 0 for no
	// such device.
	Zram int64 `json:"zram,omitempty"`
	// Netns is the inode of the instance's network namespace; Up sets it.
	Netns uint64 `json:"netns"`
	// Envoy is the path of the program Envoy, or EnvoyAuto. It runs while a service has balancing.level: Request.
	Envoy string `json:"envoy,omitempty"`
	// MetricsAddress is the address (host:port) of the Prometheus metrics; empty if they are not served.
	MetricsAddress string `json:"metricsAddress,omitempty"`
	// UIAddress is the address (host:port) of the dashboard; empty if it is served on the unix socket only. UIActions
	// lets its users put services to sleep.
	UIAddress string `json:"uiAddress,omitempty"`
	UIActions bool   `json:"uiActions,omitempty"`
}

// GateArgs returns the arguments that give the daemon the sizes and budgets of the gate.
func (c Config) GateArgs() (args []string) {
	for _, size := range []struct {
		flag string
		n    uint32
	}{
		{"--services", c.Sizes.Services}, {"--pods", c.Sizes.Pods}, {"--flows", c.Sizes.Flows}, {"--parked", c.Sizes.Parked},
		{"--max-flows-per-source", c.Sizes.FlowsPerSource}, {"--max-flows-per-service", c.Sizes.FlowsPerService},
	} {
		if size.n != 0 {
			args = append(args, size.flag, strconv.FormatUint(uint64(size.n), 10))
		}
	}
	if b := c.WakeBudgets; b != nil {
		args = append(args, "--wake-budget-node", b.Node.String(), "--wake-budget-service", b.Service.String(),
			"--wake-budget-source", b.Source.String(), "--wake-budget-proven", b.Proven.String(),
			"--wake-unproven", strconv.FormatUint(uint64(b.Parked), 10))
	}
	return args
}

// The files of a run folder.
func (c Config) lockFile() string      { return filepath.Join(c.RunDir, "lock") }
func (c Config) stateLockFile() string { return filepath.Join(c.StateDir, "lock") }
func (c Config) configFile() string    { return filepath.Join(c.RunDir, "instance.json") }
func (c Config) keyFile() string       { return filepath.Join(c.RunDir, "wire.key") }
func (c Config) daemonSocket() string  { return filepath.Join(c.RunDir, "daemon.sock") }
func (c Config) zramFile() string      { return filepath.Join(c.StateDir, "zram.json") }
func (c Config) snapshotterFile() string {
	return filepath.Join(c.StateDir, "snapshotter")
}
func (c Config) controlSocket() string { return ControlSocket(c.RunDir) }

// ControlSocket returns the path of the unix socket of the local API of a run folder's instance.
func ControlSocket(runDir string) string { return filepath.Join(runDir, "control.sock") }

// maxSocketPath is the longest path of a unix socket: sun_path without its final NUL (unix(7)).
const maxSocketPath = 107

// Validate returns the mistakes in the configuration, by flag.
func (c Config) Validate() error {
	var errs []error
	for _, dir := range []struct{ flag, path string }{{"--run-dir", c.RunDir}, {"--state-dir", c.StateDir}} {
		if !filepath.IsAbs(dir.path) || dir.path == "/" {
			errs = append(errs, fmt.Errorf("%s %q: want the absolute path of a folder for Wangell alone", dir.flag, dir.path))
		}
	}
	if n := len(c.controlSocket()); n > maxSocketPath {
		errs = append(errs, fmt.Errorf("--run-dir %s: sockets in it would have paths of %d bytes, Linux allows %d: "+
			"use a shorter one", c.RunDir, n, maxSocketPath))
	}
	for _, r := range []struct {
		flag   string
		prefix netip.Prefix
	}{{"--addresses", c.Addresses}, {"--pod-addresses", c.PodAddresses}} {
		switch {
		case !r.prefix.IsValid() || !r.prefix.Addr().Is4():
			errs = append(errs, fmt.Errorf("%s %s: want an IPv4 range, such as %s", r.flag, r.prefix, DefaultAddresses))
		case r.prefix != r.prefix.Masked():
			errs = append(errs, fmt.Errorf("%s %s: host bits are set: want %s", r.flag, r.prefix, r.prefix.Masked()))
		case r.prefix.Bits() < 8 || r.prefix.Bits() > 30:
			errs = append(errs, fmt.Errorf("%s %s: want a range between /8 and /30", r.flag, r.prefix))
		}
	}
	if c.Addresses.IsValid() && c.PodAddresses.IsValid() && c.Addresses.Overlaps(c.PodAddresses) {
		errs = append(errs, fmt.Errorf("--addresses %s and --pod-addresses %s overlap: choose separate ranges",
			c.Addresses, c.PodAddresses))
	}
	switch c.XDPMode {
	case "auto", "native", "generic", "off":
	default:
		errs = append(errs, fmt.Errorf("--xdp-mode %q: want auto, native, generic or off", c.XDPMode))
	}
	if err := c.Sizes.Check(); err != nil {
		errs = append(errs, err)
	}
	if c.Containerd != ContainerdAuto && c.Containerd != ContainerdOwn && !filepath.IsAbs(c.Containerd) {
		errs = append(errs, fmt.Errorf("--containerd %q: want auto, own or the absolute path of a socket", c.Containerd))
	}
	if c.Zram != 0 && c.Zram < zram.MinSize {
		errs = append(errs, fmt.Errorf("--zram: %d bytes: want at least 1Mi, or 0 for none", c.Zram))
	}
	if c.Envoy != "" && c.Envoy != EnvoyAuto {
		if info, err := os.Stat(c.Envoy); err != nil || !filepath.IsAbs(c.Envoy) || info.Mode()&0o111 == 0 || info.IsDir() {
			errs = append(errs, fmt.Errorf("--envoy %q: want auto, or the absolute path of the program", c.Envoy))
		}
	}
	return errors.Join(errs...)
}

// save writes the configuration to the run folder.
func (c Config) save() error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	return atomicfile.Write(c.configFile(), append(data, '\n'))
}

// load reads the configuration from a run folder; found is false if there is none.
func load(runDir string) (c Config, found bool, err error) {
	file := Config{RunDir: runDir}.configFile()
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return Config{}, false, fmt.Errorf("configuration of the instance: %s: %w", file, err)
	}
	// The folder may have had another path when the configuration was saved.
	c.RunDir = runDir
	return c, true, nil
}

// EnvoyAuto finds Envoy in PATH.
const EnvoyAuto = "auto"
