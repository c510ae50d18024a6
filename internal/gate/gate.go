// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/upkeep"
)

//go:generate sh generate.sh

// Gate is an open gate. Its methods may be called from several goroutines unless they say otherwise.
type Gate struct {
	cfg    Config
	log    *slog.Logger
	objs   gateObjects
	dev    devices
	inject *injector

	takeover *takeover // of maps of another layout; nil except during Open

	// Array maps, mapped into memory.
	statuses      *view[gateServiceStatus]
	pods          *view[gatePod]
	sockets       *view[gatePodSocket]
	recounts      *view[gateRecount]
	sourceShares  *view[gateFlowShare]
	serviceShares *view[gateFlowShare]
	idle          *view[gateIdleCount]
	backups       *view[gateSynBackup]
	rings         *view[gateRingSlot]
	heads         *view[uint64]
	places        *view[int64]
	watch         *view[gateSynWatcher]
	filters       *view[gateSourceFilter]

	services  serviceTable
	podTable  podTable
	synSearch synSearch
	shortcuts shortcuts
	doubts    doubts

	links         attachments
	nics          nics
	follower      follower
	own           map[gateAddr]uint32 // what `own_addresses` holds; nil: not known yet
	upkeep        *upkeep.Keeper
	reattached    atomic.Uint64 // how often keepFirst had to attach again
	followsListen bool          // gate_listen is attached

	stopEvents func() error   // stops the reader of events; nil if there is none
	closing    chan struct{}  // closed by Close
	announcing sync.WaitGroup // the goroutine that repeats announcements
}

// Open creates the gate of a directory, or adopts the one that is there: it mounts the bpf file system, creates
// wangell0, loads the programs, takes over pinned maps, so that flows and parked SYNs persist, and attaches everything.
// If it fails, nothing that it has created remains attached.
//
// If a pinned map's layout or size differs from this program's, its entries are carried to a new map field by field,
// and connections go on. What cannot be carried is logged by the name of the map.
func Open(cfg Config) (*Gate, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	// Kernels before 5.11 charge maps to this limit. Later ones do not, so an error does not matter there.
	_ = rlimit.RemoveMemlock()
	g := newGate(cfg)
	if err := g.open(g.load); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// newGate returns a gate that is not open yet.
func newGate(cfg Config) *Gate {
	return &Gate{
		cfg:       cfg,
		log:       cfg.Log,
		upkeep:    upkeep.NewKeeper(cfg.Log, "the gate"),
		links:     attachments{byName: map[string]*attachment{}},
		nics:      nics{byName: map[string]*nic{}, missing: map[string]bool{}},
		closing:   make(chan struct{}),
		synSearch: synSearch{wake: make(chan struct{}, 1)},
		shortcuts: shortcuts{devices: map[int]bool{}},
		doubts:    doubts{of: map[uint32]visits{}},
	}
}

// load loads the programs and maps, or takes over those that are pinned.
func (g *Gate) load() (err error) {
	g.takeover, err = load(&g.objs, &g.cfg, &g.dev)
	return err
}

// open makes the gate work. loadObjects sets objs once the gate's devices and the folders for pins are there.
func (g *Gate) open(loadObjects func() error) error {
	if err := g.cfg.ensureBPF(); err != nil {
		return err
	}
	var err error
	if err := g.cfg.ensureDirs(); err != nil {
		return err
	}
	if g.dev, err = ensureDevices(g.cfg.owner()); err != nil {
		return err
	}
	if g.cfg.EncapPort == 0 {
		if err := g.dev.setSource(); err != nil {
			return err
		}
	}
	if err := loadObjects(); err != nil {
		return err
	}
	if err := g.mapViews(); err != nil {
		return err
	}
	if err := g.adoptServices(); err != nil {
		return err
	}
	g.podTable.adopt(g.pods, g.services.addrs)
	if err := g.countFrozen(); err != nil {
		return err
	}
	if err := g.syncRoutes(); err != nil {
		return err
	}
	if g.inject, err = newInjector(g.dev.outer); err != nil {
		return err
	}
	// Attached programs drop segments until the takeover ends, so it ends even if some could not be attached.
	if err := errors.Join(g.attachAll(), g.finishTakeover()); err != nil {
		return err
	}
	return g.follow()
}

// mapViews maps the array maps into memory.
func (g *Gate) mapViews() (err error) {
	o := &g.objs
	if g.statuses, err = newView[gateServiceStatus](o.ServiceStatuses); err != nil {
		return err
	}
	if g.pods, err = newView[gatePod](o.Pods); err != nil {
		return err
	}
	if g.sockets, err = newView[gatePodSocket](o.PodSockets); err != nil {
		return err
	}
	if g.recounts, err = newView[gateRecount](o.Recounts); err != nil {
		return err
	}
	if g.sourceShares, err = newView[gateFlowShare](o.SourceShares); err != nil {
		return err
	}
	if g.serviceShares, err = newView[gateFlowShare](o.ServiceShares); err != nil {
		return err
	}
	if g.idle, err = newView[gateIdleCount](o.IdleFlows); err != nil {
		return err
	}
	if g.backups, err = newView[gateSynBackup](o.SynBackups); err != nil {
		return err
	}
	if g.rings, err = newView[gateRingSlot](o.RingSlots); err != nil {
		return err
	}
	if g.heads, err = newView[uint64](o.RingHeads); err != nil {
		return err
	}
	if g.places, err = newView[int64](o.ParkedPlaces); err != nil {
		return err
	}
	if g.watch, err = newView[gateSynWatcher](o.SynWatch); err != nil {
		return err
	}
	g.filters, err = newView[gateSourceFilter](o.SourceFilters)
	return err
}

// attachAll attaches the gate to wangell0, the external interfaces and the known pods, and detaches it from everything
// else.
func (g *Gate) attachAll() error {
	err := g.attachTCX("wangell0-egress", g.dev.inner, ebpf.AttachTCXEgress, g.objs.GateLocal)
	if err != nil {
		return err
	}
	err = g.attachTCX("wangell0-ingress", g.dev.inner, ebpf.AttachTCXIngress, g.objs.GateReleased)
	if err != nil {
		return err
	}
	if err := g.attachListen(); err != nil {
		return err
	}
	if err := g.syncOwnAddresses(); err != nil {
		return err
	}
	if err := g.syncNICs(true); err != nil {
		return err
	}
	for _, index := range g.podTable.used() {
		p := g.pods.at(index)
		if p.Ifindex == 0 {
			continue // on another node
		}
		g.nameNetns(index, int(p.Ifindex)) // the adopted pod may lack it
		if g.podTable.devices[p.Ifindex][0] == index {
			if err := g.nameDevice(index); err != nil {
				return err
			}
		}
		// The daemon removes a pod whose device is gone.
		if err := g.attachPod(int(p.Ifindex)); err != nil {
			g.log.Warn("cannot attach to a pod's device", "pod", p.Id, "error", err)
		}
	}
	if err := g.syncShortcuts(); err != nil {
		return err
	}
	g.keepFirst()
	return g.detachOthers()
}

// Close releases the gate's resources in this process. Its programs, maps and devices remain and keep working.
func (g *Gate) Close() error {
	var errs []error
	close(g.closing)
	g.announcing.Wait()
	g.stopFollowing()
	// The reader of events uses the maps that are unmapped below.
	if g.stopEvents != nil {
		errs = append(errs, g.stopEvents())
	}
	if g.inject != nil {
		errs = append(errs, g.inject.close())
	}
	g.dev.close()
	for _, l := range g.links.byName {
		errs = append(errs, l.Close())
	}
	views := []interface{ close() error }{g.statuses, g.pods, g.sockets, g.recounts, g.sourceShares, g.serviceShares,
		g.idle, g.backups, g.rings, g.heads, g.places, g.watch, g.filters}
	for _, v := range views {
		errs = append(errs, v.close())
	}
	if g.takeover != nil {
		errs = append(errs, g.takeover.close())
	}
	errs = append(errs, g.objs.Close())
	return errors.Join(errs...)
}

// Remove removes everything that Open has created for a Config.Dir: links, maps, the bpf file system and wangell0.
// Established flows through the gate are cut. It is no error if there is no gate.
func Remove(dir string) error { return (&Config{Dir: dir}).Remove() }

// Remove is like the function of the same name, for the gate of Dir or BPFDir.
func (c *Config) Remove() error {
	var errs []error
	// Links come first: they detach their programs.
	for _, d := range []string{c.linksDir(), c.mapsDir(), c.nextDir(), c.formerDir()} {
		if err := os.RemoveAll(d); err != nil {
			errs = append(errs, fmt.Errorf("removing pins: %w", err))
		}
	}
	if is, err := isBPF(c.bpffs()); c.BPFDir == "" && err == nil && is {
		if err := unix.Unmount(c.bpffs(), unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", c.bpffs(), err))
		}
	}
	if err := os.Remove(c.bpffs()); err != nil && !os.IsNotExist(err) {
		errs = append(errs, fmt.Errorf("removing the directory for pins: %w", err))
	}
	errs = append(errs, removeDevices(c.owner()))
	return errors.Join(errs...)
}

// finishTakeover completes a takeover once this process's programs are attached.
func (g *Gate) finishTakeover() error {
	t := g.takeover
	if t == nil {
		return nil
	}
	g.takeover = nil
	t.copyChanges(g.objs.pinnedMaps())
	// Meanwhile the former programs have counted in the former maps. While no segment is handled, counting again is
	// exact; a later sweep skips counts that change while it runs.
	miscounted := g.countAgain()
	if err := g.objs.TakingOver.Set(uint32(0)); err != nil {
		return fmt.Errorf("ending the takeover: %w", err)
	}
	if err := os.RemoveAll(g.cfg.formerDir()); err != nil {
		return fmt.Errorf("removing pins of the former maps: %w", err)
	}
	return errors.Join(miscounted, t.close())
}
