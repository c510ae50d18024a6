// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// MaxRanges is the maximum number of service ranges.
const MaxRanges = int(gateLimitMAX_RANGES)

// DefaultSYNTimeout is the default of Config.SYNTimeout. A client retransmits its SYN after one second (RFC 6298).
const DefaultSYNTimeout = 200 * time.Millisecond

// Sizes are the limits of the gate's tables. Zero means the default. docs/operations/sizes.md has their memory costs.
type Sizes struct {
	Services uint32 `json:"services,omitempty"` // services; default 16,384
	Pods     uint32 `json:"pods,omitempty"`     // pods of all nodes; default 4,096
	Flows    uint32 `json:"flows,omitempty"`    // tracked connections; default 262,144
	Parked   uint32 `json:"parked,omitempty"`   // SYNs parked over all services; default 4,096
	// Ring is how many half-open and how many closed flows each ring holds, of which there are 16 each. It is a power of
	// two; default 4,096.
	Ring uint32 `json:"-"`

	FlowsPerSource  uint32 `json:"flowsPerSource,omitempty"`  // connections of one client address; default half of Flows
	FlowsPerService uint32 `json:"flowsPerService,omitempty"` // connections of one service; default 3/4 of Flows
}

// DefaultSizes returns the sizes that are used unless others are set.
func DefaultSizes() Sizes {
	return Sizes{Services: 16384, Pods: 4096, Flows: 262144, Parked: 4096, Ring: 4096}
}

// Check returns an error if the gate cannot work with a size. It names the size by its flag.
func (s Sizes) Check() error {
	for _, v := range []struct {
		flag           string
		n, least, most uint32
	}{
		{"services", s.Services, 1, 100_000}, // the limit of the table of services on the wire
		{"pods", s.Pods, 1, 1_000_000},
		{"flows", s.Flows, 1, 1 << 26},
		{"parked", s.Parked, 1, 1 << 20},
	} {
		if v.n != 0 && (v.n < v.least || v.n > v.most) {
			return fmt.Errorf("--%s %d: want %d to %d", v.flag, v.n, v.least, v.most)
		}
	}
	if s.Ring&(s.Ring-1) != 0 {
		return fmt.Errorf("ring size %d: not a power of two", s.Ring)
	}
	return nil
}

func (s Sizes) withDefaults() Sizes {
	def := func(v *uint32, d uint32) {
		if *v == 0 {
			*v = d
		}
	}
	d := DefaultSizes()
	def(&s.Services, d.Services)
	def(&s.Pods, d.Pods)
	def(&s.Flows, d.Flows)
	def(&s.Parked, d.Parked)
	def(&s.Ring, d.Ring)
	def(&s.FlowsPerSource, max(s.Flows/2, 1))
	def(&s.FlowsPerService, max(s.Flows/4*3, 1))
	return s
}

// XDPMode selects how gate_xdp is attached.
type XDPMode string

// The XDP modes. They differ in speed only: without XDP, gate_nic answers ARP requests and parks SYNs. In every mode
// XDP is off at interfaces where it cannot work: bonds, interfaces that remove the tags of VLANs on them, and
// interfaces to which another XDP program is attached.
const (
	XDPAuto    XDPMode = "auto"    // native, or off if the driver refuses
	XDPNative  XDPMode = "native"  // in the driver
	XDPGeneric XDPMode = "generic" // in the network stack, which copies packets of several fragments: for tests
	XDPOff     XDPMode = "off"     // not at all
)

// Config configures a gate.
type Config struct {
	// Dir is a directory of the gate's own. A bpf file system is mounted on Dir/bpf, unless BPFDir is set.
	Dir string
	// BPFDir is a directory for pins in an existing bpf file system. It is created if necessary.
	BPFDir string
	// ServiceRanges are the IPv4 ranges of service addresses, at most MaxRanges. They are routed to wangell0. A service
	// address outside them gets a route of its own.
	ServiceRanges []netip.Prefix
	// Interfaces are the external interfaces, through which clients on other hosts connect. The interface with NodeAddr
	// is added if EncapPort is set. The gate follows their devices: one that disappears later may come back.
	Interfaces []string
	// DefaultInterfaces adds the interfaces with an IPv4 default route, now and later.
	DefaultInterfaces bool
	// EncapPort is the UDP port on which gates exchange packets, the same on all nodes; 0 on a single node.
	EncapPort uint16
	// NodeAddr is this node's IPv4 address, for encapsulated packets.
	NodeAddr netip.Addr
	// SYNTimeout is how long a pod may take to answer a SYN before another pod gets it. Zero is DefaultSYNTimeout;
	// a negative value waits forever.
	SYNTimeout time.Duration
	// XDPMode is the XDP mode; empty is XDPAuto.
	XDPMode XDPMode
	// WakeBudgets limit the wakes caused by clients that have not proven their source address.
	WakeBudgets WakeBudgets
	// ProofKey is the key of challenges, the same on all nodes; zero means a random one.
	ProofKey [16]byte
	// Shortcut makes connections of pods on this node bypass its network stack once the stack has let their SYN pass.
	// The gate is then attached to the devices of all pods, whatever created them. Otherwise it is attached to pods of
	// services only, and even the SYNs of those bypass the stack.
	Shortcut bool
	// RepliesByEdge makes replies to clients of other nodes go back through the client's edge node, for networks that
	// drop packets that a node sends from an address other than its own. Otherwise most of them go straight to the
	// client.
	RepliesByEdge bool
	// Sizes are the limits of the tables.
	Sizes Sizes
	// Log receives log messages; nil is slog.Default.
	Log *slog.Logger
}

// withDefaults replaces zero values by defaults.
func (c Config) withDefaults() Config {
	c.Sizes = c.Sizes.withDefaults()
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.SYNTimeout == 0 {
		c.SYNTimeout = DefaultSYNTimeout
	}
	if c.ProofKey == [16]byte{} {
		_, _ = rand.Read(c.ProofKey[:]) // it never fails
	}
	if c.XDPMode == "" {
		c.XDPMode = XDPAuto
	}
	return c
}

// check returns an error for a configuration that cannot work.
func (c *Config) check() error {
	if len(c.ServiceRanges) > MaxRanges {
		return fmt.Errorf("%d service ranges: at most %d: join neighboring ones", len(c.ServiceRanges), MaxRanges)
	}
	for _, r := range c.ServiceRanges {
		if !r.IsValid() || !r.Addr().Is4() {
			return fmt.Errorf("service range %v: not an IPv4 range: give one like 10.46.100.0/24", r)
		}
	}
	if c.EncapPort != 0 && !c.NodeAddr.Is4() {
		return fmt.Errorf("node address %v: not an IPv4 address: other nodes send packets there", c.NodeAddr)
	}
	if err := c.Sizes.Check(); err != nil {
		return err
	}
	return c.WakeBudgets.check()
}

// inRange reports whether an address is in a service range.
func (c *Config) inRange(a netip.Addr) bool {
	return slices.ContainsFunc(c.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// owner names the gate, uniquely in its network namespace.
func (c *Config) owner() string {
	if c.BPFDir != "" {
		return c.BPFDir
	}
	return c.Dir
}

// bpffs is the directory with the pins.
func (c *Config) bpffs() string {
	if c.BPFDir != "" {
		return c.BPFDir
	}
	return filepath.Join(c.Dir, "bpf")
}

func (c *Config) mapsDir() string   { return filepath.Join(c.bpffs(), "maps") }
func (c *Config) nextDir() string   { return filepath.Join(c.bpffs(), "next") }   // see takeover
func (c *Config) formerDir() string { return filepath.Join(c.bpffs(), "former") } // see takeover
func (c *Config) linksDir() string  { return filepath.Join(c.bpffs(), "links") }

// ensureDirs makes the directories for pins. The pins of maps may be in formerDir only: see takeover.
func (c *Config) ensureDirs() error {
	dirs := []string{c.linksDir()}
	if _, err := os.Stat(c.formerDir()); errors.Is(err, os.ErrNotExist) {
		dirs = append(dirs, c.mapsDir())
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating a directory for pins: %w", err)
		}
	}
	return nil
}

// ensureBPF makes sure that the directory for pins is in a bpf file system.
func (c *Config) ensureBPF() error {
	dir := c.bpffs()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating %s: %w", dir, err)
	}
	is, err := isBPF(dir)
	if err != nil {
		return fmt.Errorf("determining the file system of %s: %w", dir, err)
	}
	if is {
		return nil
	}
	if c.BPFDir != "" {
		return fmt.Errorf("%s: not in a bpf file system: mount one (mount -t bpf bpf /sys/fs/bpf)", dir)
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a bpf file system on %s: %w: this needs root with CAP_SYS_ADMIN", dir, err)
	}
	return nil
}

// isBPF reports whether a directory is in a bpf file system.
func isBPF(dir string) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(dir, &fs)
	return err == nil && uint32(fs.Type) == unix.BPF_FS_MAGIC, err
}
