// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Sizes are the limits of the gate's tables. Zero means the default.
type Sizes struct {
	Services uint32 // services known at once; default 16,384
	Pods     uint32 // pods known at once; default 4,096
	Flows    uint32 // connections tracked at once; default 262,144
	Parked   uint32 // SYNs parked at once, over all services; default 4,096 (about 7 MB)
	Ring     uint32 // half-open and closed flows kept per ring (16 rings each); a power of two; default 4,096
}

func (s Sizes) withDefaults() Sizes {
	def := func(v *uint32, d uint32) {
		if *v == 0 {
			*v = d
		}
	}
	def(&s.Services, 16384)
	def(&s.Pods, 4096)
	def(&s.Flows, 262144)
	def(&s.Parked, 4096)
	def(&s.Ring, 4096)
	return s
}

// XDPMode chooses how gate_xdp is attached.
type XDPMode string

// The modes of XDP. With XDPOff the gate does not answer ARP; everything else works the same.
const (
	XDPAuto    XDPMode = "auto"    // native, and generic where the driver refuses
	XDPNative  XDPMode = "native"  // in the driver
	XDPGeneric XDPMode = "generic" // in the stack, before all else
	XDPOff     XDPMode = "off"     // not at all; SYNs are parked by gate_nic
)

// Config says what gate to open.
type Config struct {
	// Dir is a folder of the gate's own; a bpf file system is mounted on Dir/bpf, unless there is a BPFDir.
	Dir string
	// BPFDir is a folder for pins in a bpf file system that is there already. It is made if need be.
	BPFDir string
	// ServiceRanges hold the service addresses (IPv4), at most MaxRanges. They are routed to wangell0. A service
	// address outside of them gets a route of its own.
	ServiceRanges []netip.Prefix
	// Interfaces are the external interfaces by which clients of other hosts come. That with NodeAddr is always one.
	Interfaces []string
	// EncapPort is the UDP port on which gates send each other packets for their pods, the same on all nodes; 0 if
	// there is one node only.
	EncapPort uint16
	// NodeAddr is this node's address (IPv4), from and to which encapsulated packets go.
	NodeAddr netip.Addr
	// SYNTimeout is how long a pod may take to answer a SYN before another pod gets it; zero is DefaultSYNTimeout, less
	// than zero waits for ever.
	SYNTimeout time.Duration
	// XDPMode chooses the mode of XDP; empty is XDPAuto.
	XDPMode XDPMode
	// Shortcut has connections of pods on this node go round its stack once it has let their SYN pass: the gate is attached
	// to the devices of all pods, whoever made them. Without it, only services' pods are attached to, and their own SYNs to
	// services go round the stack, too.
	Shortcut bool
	// Sizes are the limits of the tables.
	Sizes Sizes
	Log   *slog.Logger
}

// Gate is the open gate. Its methods may be called from several goroutines, but for those that say otherwise.
type Gate struct {
	cfg   Config
	log   *slog.Logger
	objs  gateObjects
	dev   devices
	links map[string]link.Link // by name of the pin
	// followsListen tells whether gate_listen is attached.
	followsListen bool

	states    *view[gateServiceState]
	pods      *view[gatePod]
	recounts  *view[gateRecount]
	kepts     *view[gateKept]
	rings     *view[gateRingSlot]
	heads     *view[uint64]
	watch     *view[gateWatch]
	silence   silence
	services  serviceTable
	podTable  podTable
	shortcuts shortcuts
	inject    *injector
	attached  map[string]string        // interface → mode of XDP
	nicMACs   map[int]net.HardwareAddr // of the external interfaces, by index

	stopEvents func() error // ends the reader of events, if there is one

	closing    chan struct{}  // closed by Close
	announcing sync.WaitGroup // goroutines that repeat announcements
}

// MaxRanges is how many ranges of service addresses there may be.
const MaxRanges = 8

// bpffs is the folder with the pins.
func (c *Config) bpffs() string {
	if c.BPFDir != "" {
		return c.BPFDir
	}
	return filepath.Join(c.Dir, "bpf")
}

// owner names the gate: no two gates in a network namespace have the same.
func (c *Config) owner() string {
	if c.BPFDir != "" {
		return c.BPFDir
	}
	return c.Dir
}

func (c *Config) mapsDir() string  { return filepath.Join(c.bpffs(), "maps") }
func (c *Config) linksDir() string { return filepath.Join(c.bpffs(), "links") }

// Open makes or adopts the gate of a folder: it mounts the bpf file system, creates wangell0, loads the
// programs, takes over pinned maps (so flows and parked SYNs go on), and attaches everything. On error,
// nothing that it made remains attached, unless it was there before.
//
// Maps whose layout or size differs from this program's are made anew, with a warning: their flows are lost.
func Open(cfg Config) (*Gate, error) {
	cfg.Sizes = cfg.Sizes.withDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Sizes.Ring&(cfg.Sizes.Ring-1) != 0 {
		return nil, fmt.Errorf("ring size %d: not a power of two", cfg.Sizes.Ring)
	}
	if cfg.SYNTimeout == 0 {
		cfg.SYNTimeout = DefaultSYNTimeout
	}
	if cfg.XDPMode == "" {
		cfg.XDPMode = XDPAuto
	}
	// Kernels before 5.11 count maps against this limit; later ones do not, and it may not be ours to raise.
	_ = rlimit.RemoveMemlock()
	g := &Gate{cfg: cfg, log: cfg.Log, links: map[string]link.Link{}, attached: map[string]string{}, nicMACs: map[int]net.HardwareAddr{}, closing: make(chan struct{}), silence: silence{wake: make(chan struct{}, 1)}, shortcuts: shortcuts{devices: map[int]bool{}}}
	if err := g.open(); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// check finds what cannot work.
func (c *Config) check() error {
	if len(c.ServiceRanges) > MaxRanges {
		return fmt.Errorf("%d service ranges: at most %d: join neighbouring ones", len(c.ServiceRanges), MaxRanges)
	}
	for _, r := range c.ServiceRanges {
		if !r.IsValid() || !r.Addr().Is4() {
			return fmt.Errorf("service range %v: not an IPv4 range: give one like 10.46.100.0/24", r)
		}
	}
	if c.EncapPort != 0 && !c.NodeAddr.Is4() {
		return fmt.Errorf("node address %v: not an IPv4 address: other nodes send packets there", c.NodeAddr)
	}
	return nil
}

func (g *Gate) open() error {
	if err := g.cfg.ensureBPF(); err != nil {
		return err
	}
	if err := g.addNodeInterface(); err != nil {
		return err
	}
	for _, dir := range []string{g.cfg.mapsDir(), g.cfg.linksDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making a folder for pins: %w", err)
		}
	}
	var err error
	if g.dev, err = ensureDevices(g.cfg.owner()); err != nil {
		return err
	}
	if err := g.load(); err != nil {
		return err
	}
	if g.states, err = newView[gateServiceState](g.objs.States); err != nil {
		return err
	}
	if g.pods, err = newView[gatePod](g.objs.Pods); err != nil {
		return err
	}
	if g.recounts, err = newView[gateRecount](g.objs.Recounts); err != nil {
		return err
	}
	if g.kepts, err = newView[gateKept](g.objs.Kepts); err != nil {
		return err
	}
	if g.rings, err = newView[gateRingSlot](g.objs.ShortLived); err != nil {
		return err
	}
	if g.heads, err = newView[uint64](g.objs.RingHeads); err != nil {
		return err
	}
	if g.watch, err = newView[gateWatch](g.objs.Watches); err != nil {
		return err
	}
	if err := g.services.adopt(g); err != nil {
		return err
	}
	g.podTable.adopt(g)
	if err := g.routes(); err != nil {
		return err
	}
	if g.inject, err = newInjector(g.dev.outer); err != nil {
		return err
	}
	if err := g.attachAll(); err != nil || !g.cfg.Shortcut {
		return err
	}
	return g.followShortcuts()
}

// load loads the programs; maps come from their pins where they fit.
func (g *Gate) load() error {
	spec, err := loadGate()
	if err != nil {
		return fmt.Errorf("reading the gate's programs: %w", err)
	}
	if err := g.configure(spec); err != nil {
		return err
	}
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: g.cfg.mapsDir()}}
	err = spec.LoadAndAssign(&g.objs, opts)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		g.log.Warn("pinned maps are of another version or size: starting with empty ones", "error", err)
		if err := os.RemoveAll(g.cfg.mapsDir()); err != nil {
			return fmt.Errorf("removing old maps: %w", err)
		}
		if err := os.MkdirAll(g.cfg.mapsDir(), 0o700); err != nil {
			return fmt.Errorf("making a folder for pins: %w", err)
		}
		err = spec.LoadAndAssign(&g.objs, opts)
	}
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		return fmt.Errorf("the kernel refuses the gate's programs: %w (see \"wangell doctor\")", err)
	}
	if err != nil {
		return fmt.Errorf("loading the gate: %w (see \"wangell doctor\")", err)
	}
	return nil
}

// configure sets sizes and constants in the spec.
func (g *Gate) configure(spec *ebpf.CollectionSpec) error {
	s := g.cfg.Sizes
	for name, n := range map[string]uint32{
		gateMapServices: s.Services, gateMapAddresses: s.Services, gateMapStates: s.Services, gateMapMaglevs: s.Services, gateMapHomes: s.Services,
		gateMapPods: s.Pods, gateMapPodTraffic: s.Pods, gateMapPodPorts: s.Pods, gateMapPodNames: s.Pods, gateMapListeners: s.Pods, gateMapRecounts: s.Pods,
		gateMapFlows:      s.Flows,
		gateMapParkedSyns: s.Parked, gateMapParkedFlows: s.Parked, gateMapParkedSources: s.Parked,
		gateMapShortLived: 2 * ringShards * s.Ring, gateMapKepts: ringShards * s.Ring,
	} {
		spec.Maps[name].MaxEntries = n
	}
	for name, m := range spec.Maps {
		// The programs' own sections (constants) belong to one load.
		if name[0] != '.' && name != gateMapScratch {
			m.Pinning = ebpf.PinByName
		}
	}
	var addrs, masks [MaxRanges]uint32
	for i, r := range g.cfg.ServiceRanges {
		a := r.Masked().Addr().As4()
		addrs[i] = binary.NativeEndian.Uint32(a[:])
		masks[i] = binary.NativeEndian.Uint32(net.CIDRMask(r.Bits(), 32))
	}
	var mac [6]uint8
	copy(mac[:], g.dev.innerMAC)
	for name, v := range map[string]any{
		gateVarRanges: uint32(len(g.cfg.ServiceRanges)), gateVarRangeAddr: addrs, gateVarRangeMask: masks,
		gateVarWangellIfindex: uint32(g.dev.inner), gateVarWangellMac: mac, gateVarRingSize: s.Ring,
		gateVarShortcut:  g.cfg.Shortcut,
		gateVarEncapPort: htons(g.cfg.EncapPort), gateVarNodeAddr: nodeBE(g.cfg.NodeAddr),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

// ringShards is RING_SHARDS of bpf/types.h.
const ringShards = 16

// ensureBPF makes sure that the folder for pins is in a bpf file system.
func (c *Config) ensureBPF() error {
	dir := c.bpffs()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", dir, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if uint32(fs.Type) == unix.BPF_FS_MAGIC {
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

// Close lets go of the gate; its programs, maps and devices stay and go on working.
func (g *Gate) Close() error {
	var errs []error
	close(g.closing)
	g.announcing.Wait()
	g.shortcuts.close()
	// First: it reads the maps that are let go of below.
	if g.stopEvents != nil {
		errs = append(errs, g.stopEvents())
	}
	if g.inject != nil {
		errs = append(errs, g.inject.close())
	}
	if g.dev.netlink != nil {
		g.dev.netlink.Close()
	}
	for _, l := range g.links {
		errs = append(errs, l.Close())
	}
	for _, v := range []interface{ close() error }{g.states, g.pods, g.recounts, g.kepts, g.rings, g.heads, g.watch} {
		errs = append(errs, v.close())
	}
	errs = append(errs, g.objs.Close())
	return errors.Join(errs...)
}

// Remove takes away everything that Open made for a Config.Dir: links, maps, the bpf file system, wangell0.
// Established flows through the gate end. A gate that is not there is not an error.
func Remove(dir string) error { return (&Config{Dir: dir}).Remove() }

// Remove is the function Remove for a gate of any folder: Dir and BPFDir are looked at.
func (c *Config) Remove() error {
	var errs []error
	// Links first: a link whose pin goes is detached once nobody holds it.
	for _, d := range []string{c.linksDir(), c.mapsDir()} {
		if err := os.RemoveAll(d); err != nil {
			errs = append(errs, fmt.Errorf("removing pins: %w", err))
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.bpffs(), &fs); c.BPFDir == "" && err == nil && uint32(fs.Type) == unix.BPF_FS_MAGIC {
		if err := unix.Unmount(c.bpffs(), unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", c.bpffs(), err))
		}
	}
	if err := os.Remove(c.bpffs()); err != nil && !os.IsNotExist(err) {
		errs = append(errs, err)
	}
	errs = append(errs, removeDevices(c.owner()))
	return errors.Join(errs...)
}
