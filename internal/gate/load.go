// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// renamedMaps maps former pin names to present ones. The layouts are the same.
var renamedMaps = map[string]string{
	"states":      gateMapServiceStatuses,
	"short_lived": gateMapRingSlots,
	"kepts":       gateMapSynBackups,
	"maglevs":     gateMapMaglevTables,
	"watches":     gateMapSynWatch,
	"homes":       gateMapHomeNodes,
	"askeds":      gateMapPendingQueries,
	"askings":     gateMapQueryBudget,
}

// How the programs and the kernel's types are read. Tests replace these to cache the results: they load many gates, and
// reading takes a fifth of a load's CPU time with the race detector. A daemon loads one gate, and would only hold the
// memory.
var (
	readPrograms = loadGate
	kernelTypes  *btf.Cache // nil: read for each load
)

// load loads the programs and maps. Maps come from their pins. If the pinned maps have another layout, new maps get
// their entries; the returned takeover, which may be nil, must then be finished once the programs are attached.
func load(objs *gateObjects, cfg *Config, dev *devices) (*takeover, error) {
	spec, err := readPrograms()
	if err != nil {
		return nil, fmt.Errorf("reading the gate's programs: %w", err)
	}
	setSizes(spec, cfg.Sizes)
	if err := setConstants(spec, cfg, dev); err != nil {
		return nil, err
	}
	if err := restorePins(cfg); err != nil {
		return nil, err
	}
	if err := renamePins(cfg.mapsDir()); err != nil {
		return nil, err
	}
	t, err := newTakeover(spec, cfg)
	if errors.Is(err, errCannotCarry) {
		cfg.Log.Warn("pinned maps cannot be carried to this version: replacing all by empty ones", "error", err)
		if err := removeMaps(cfg); err != nil {
			return nil, err
		}
		t, err = newTakeover(spec, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("taking over pinned maps: %w", err)
	}
	if !t.needed() {
		opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: cfg.mapsDir()}, Cache: kernelTypes}
		return nil, errors.Join(explainLoad(spec.LoadAndAssign(objs, opts)), t.close())
	}
	if err := t.load(spec, objs, cfg); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// load loads the programs with the maps of a takeover, and copies their entries.
func (t *takeover) load(spec *ebpf.CollectionSpec, objs *gateObjects, cfg *Config) error {
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone // see swap
	}
	if err := spec.Variables[gateVarTakingOver].Set(uint32(1)); err != nil {
		return fmt.Errorf("setting the variable %s: %w", gateVarTakingOver, err)
	}
	// Loading takes longer than copying, so it comes first: little changes between the copy and the moment when the
	// programs are attached.
	err := spec.LoadAndAssign(objs, &ebpf.CollectionOptions{MapReplacements: t.adopted, Cache: kernelTypes})
	if err := explainLoad(err); err != nil {
		return err
	}
	maps := objs.pinnedMaps()
	t.copy(maps)
	return t.swap(maps, cfg)
}

// explainLoad adds advice to an error of LoadAndAssign, which may be nil.
func explainLoad(err error) error {
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		return fmt.Errorf("the kernel rejects the gate's programs: %w (%s)", err, loadHint(KernelRelease()))
	}
	if err != nil {
		return fmt.Errorf("loading the gate: %w (%s)", err, loadHint(KernelRelease()))
	}
	return nil
}

// removeMaps removes the pins of all maps.
func removeMaps(cfg *Config) error {
	for _, dir := range []string{cfg.mapsDir(), cfg.formerDir()} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing old maps: %w", err)
		}
	}
	if err := os.MkdirAll(cfg.mapsDir(), 0o700); err != nil {
		return fmt.Errorf("creating a directory for pins: %w", err)
	}
	return nil
}

// renamePins gives adopted pins their present names.
func renamePins(dir string) error {
	for from, to := range renamedMaps {
		err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("renaming the pinned map %s to %s: %w", from, to, err)
		}
	}
	return nil
}

// setSizes sets the sizes of maps, and which are pinned.
func setSizes(spec *ebpf.CollectionSpec, s Sizes) {
	bySize := map[uint32][]string{}
	add := func(n uint32, names ...string) { bySize[n] = append(bySize[n], names...) }
	add(s.Services, gateMapServices, gateMapAddresses, gateMapServiceStatuses, gateMapMaglevTables, gateMapHomeNodes,
		gateMapServiceShares, gateMapFloods, gateMapSourceFilters, gateMapLeftAddresses, gateMapQueryShares,
		gateMapVipEdges)
	add(s.Pods, gateMapPods, gateMapPodSockets, gateMapPodTraffic, gateMapPodPorts, gateMapPodDevices, gateMapPodNames,
		gateMapListeners, gateMapRecounts)
	add(s.Flows, gateMapFlows)
	add(s.Parked, gateMapParkedSyns, gateMapParkedFlows, gateMapParkedSources)
	add(uint32(gateLimitRING_SHARDS)*s.Ring, gateMapSynBackups)
	add(2*uint32(gateLimitRING_SHARDS)*s.Ring, gateMapRingSlots)
	for n, names := range bySize {
		for _, name := range names {
			spec.Maps[name].MaxEntries = n
		}
	}
	for name, m := range spec.Maps {
		// Sections of constants and variables (".rodata") belong to one load of the programs.
		if name[0] != '.' && name != gateMapScratch {
			m.Pinning = ebpf.PinByName
		}
	}
}

// setConstants sets the constants of the programs.
func setConstants(spec *ebpf.CollectionSpec, cfg *Config, dev *devices) error {
	var addrs, masks [MaxRanges]uint32
	for i, r := range cfg.ServiceRanges {
		addrs[i] = toBE(r.Masked().Addr())
		masks[i] = binary.NativeEndian.Uint32(net.CIDRMask(r.Bits(), 32))
	}
	for name, v := range map[string]any{
		gateVarRangeCount:      uint32(len(cfg.ServiceRanges)),
		gateVarRangeAddr:       addrs,
		gateVarRangeMask:       masks,
		gateVarWangellIfindex:  uint32(dev.inner),
		gateVarWangellMac:      hardwareAddr(dev.innerMAC),
		gateVarRingSize:        cfg.Sizes.Ring,
		gateVarSourceShareMax:  cfg.Sizes.FlowsPerSource,
		gateVarServiceShareMax: cfg.Sizes.FlowsPerService,
		gateVarShortcutEnabled: cfg.Shortcut,
		gateVarRepliesByEdge:   cfg.RepliesByEdge && cfg.EncapPort != 0,
		gateVarEncapPort:       htons(cfg.EncapPort),
		gateVarNodeAddr:        toBE(cfg.NodeAddr),
		gateVarProofKey:        proofKeyWords(cfg.ProofKey),
		gateVarWakeInterval:    cfg.WakeBudgets.intervals(),
		gateVarWakeBurst:       cfg.WakeBudgets.bursts(),
		gateVarParkedShared:    cfg.Sizes.Parked - cfg.Sizes.Parked/4,
		gateVarUnprovenParked:  cfg.WakeBudgets.Parked,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("setting the constant %s: %w", name, err)
		}
	}
	return nil
}

// MinKernel is the first version of Linux with tcx links, which the gate needs.
var MinKernel = [2]int{6, 6}

// KernelTooOld reports whether a release of Linux (uname -r) is older than MinKernel. It is an error if the release
// does not begin with a version.
func KernelTooOld(release string) (bool, error) {
	var got [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &got[0], &got[1]); err != nil {
		return false, fmt.Errorf("cannot parse release %q", release)
	}
	return slices.Compare(got[:], MinKernel[:]) < 0, nil
}

// loadHint returns what to do when a kernel does not load the gate. Distributions may have added tcx to an older
// kernel, so loading is tried first.
func loadHint(release string) string {
	if old, err := KernelTooOld(release); old && err == nil {
		return fmt.Sprintf("Linux %s is too old: boot Linux %d.%d or later", release, MinKernel[0], MinKernel[1])
	}
	return `see "wangell doctor"`
}

// KernelRelease returns what uname -r prints; empty on failure.
func KernelRelease() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return ""
	}
	return unix.ByteSliceToString(uts.Release[:])
}
