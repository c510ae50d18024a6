// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"wangell.loutres.me/internal/base/monotime"
)

// Limits of the two passes over the carried maps. Only the start waits for the first pass; services do not answer
// during the second.
const (
	firstPass  = 30 * time.Second
	secondPass = 10 * time.Second
)

// clockTick is more than a tick of the coarse clock, by which the programs record times.
const clockTick = 20 * time.Millisecond

// rebuiltMaps may begin empty while other maps keep their entries: their content is counted again, limits rates, or
// belongs to connections that have just begun.
var rebuiltMaps = []string{
	gateMapCounters, gateMapEvents, gateMapFloods, gateMapFrontFlows, gateMapIdleFlows, gateMapPendingQueries,
	gateMapPodTraffic,
	gateMapProvenBudgets, gateMapProvenClients, gateMapQueryBudget, gateMapQueryShares, gateMapRecounts,
	gateMapRepeatedSyns, gateMapRingSlots, gateMapServiceShares, gateMapSourceBudgets, gateMapSourceShares,
	gateMapSynBackups, gateMapSynRecords, gateMapSynWatch, gateMapWakeLimits,
}

// ringMaps are indexed by a number that depends on the size of a ring.
var ringMaps = []string{gateMapRingSlots, gateMapSynBackups}

// takeover carries the entries of maps pinned by an earlier version to the present layout. The programs of that version
// handle packets, and change its maps, until the present ones are attached. Therefore entries are copied twice: all of
// them before that, and the changed ones after it. In between, the present programs drop all segments (taking_over in
// bpf/maps.h), which TCP sends again: of two records of one flow, neither would be right.
//
// The pins show how far it has got, so that the next process can finish it:
//
//	next/              being filled; of no use to others
//	maps/              pins of the present maps
//	former/            pins of the maps from before: the second pass is to be done
type takeover struct {
	log     *slog.Logger
	adopted map[string]*ebpf.Map // pinned maps that are used as they are, by name
	carried []carriage           // the others, flows last
	late    []carriage           // carried maps whose changes a second pass copies
	begun   monotime.Time        // when the first pass began
	former  []*ebpf.Map          // maps from before
}

// newTakeover compares pinned maps with those that the programs expect. Maps that cannot be carried begin empty, and
// the log names them; if one of them is not in rebuiltMaps, all maps begin empty.
func newTakeover(spec *ebpf.CollectionSpec, cfg *Config) (*takeover, error) {
	t := &takeover{log: cfg.Log, adopted: map[string]*ebpf.Map{}}
	if err := t.findUnfinished(spec, cfg); err != nil {
		return nil, errors.Join(err, t.close())
	}
	for name, m := range spec.Maps {
		if m.Pinning != ebpf.PinByName || m.Type == ebpf.ProgramArray {
			continue
		}
		if err := t.compare(name, m, cfg); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	// The largest map comes last: if time runs out, the others are complete, and fewer entries change before the second
	// pass.
	if i := slices.IndexFunc(t.carried, func(c carriage) bool { return c.name == gateMapFlows }); i >= 0 {
		t.carried = append(slices.Delete(slices.Clone(t.carried), i, i+1), t.carried[i])
	}
	return t, nil
}

// errCannotCarry is returned if all maps have to begin empty.
var errCannotCarry = errors.New("cannot carry the entries of a pinned map")

// compare decides whether a pinned map is used, carried or replaced.
func (t *takeover) compare(name string, spec *ebpf.MapSpec, cfg *Config) error {
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(cfg.mapsDir(), name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pinned map %s: %w", name, err)
	}
	t.former = append(t.former, pinned)
	if slices.Contains(ringMaps, name) && pinned.MaxEntries() != spec.MaxEntries {
		err = fmt.Errorf("had %d entries and has %d", pinned.MaxEntries(), spec.MaxEntries)
	}
	var c carriage
	if err == nil {
		c, err = newCarriage(name, pinned, spec)
	}
	switch {
	case err == nil && c.identical(spec):
		t.adopted[name] = pinned
	case err == nil:
		t.carried = append(t.carried, c)
	case slices.Contains(rebuiltMaps, name):
		t.log.Warn("a pinned map cannot be carried to this version: it begins empty", "map", name, "error", err)
		t.carried = append(t.carried, carriage{name: name, from: pinned, restarts: true})
	default:
		return fmt.Errorf("%w: map %s: %w", errCannotCarry, name, err)
	}
	return nil
}

// lateMaps are the maps whose changes since the first pass a second one copies, each with a function that returns the
// time of a value's last change. Other maps are written by the daemon only, or their changes are counted again or sent
// again by clients.
var lateMaps = map[string]func(value []byte) monotime.Time{
	gateMapFlows:         func(v []byte) monotime.Time { return monotime.Time((*gateFlow)(unsafe.Pointer(&v[0])).Last) },
	gateMapProvenClients: func(v []byte) monotime.Time { return monotime.Time(*(*uint64)(unsafe.Pointer(&v[0]))) },
}

// restorePins moves the pins of maps back to their place if an earlier process was killed between the two steps of
// swap.
func restorePins(cfg *Config) error {
	_, err := os.Stat(cfg.mapsDir())
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(cfg.formerDir(), cfg.mapsDir()); err != nil {
		return fmt.Errorf("restoring the pins of maps: %w", err)
	}
	return nil
}

// findUnfinished prepares the second pass if an earlier process did not reach it.
func (t *takeover) findUnfinished(spec *ebpf.CollectionSpec, cfg *Config) error {
	if err := os.RemoveAll(cfg.nextDir()); err != nil {
		return fmt.Errorf("removing pins of an interrupted start: %w", err)
	}
	for name := range lateMaps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(cfg.formerDir(), name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("pinned map %s of the former version: %w", name, err)
		}
		t.former = append(t.former, m)
		c, err := newCarriage(name, m, spec.Maps[name])
		if err != nil {
			t.log.Warn("a pinned map of the former version cannot be carried", "map", name, "error", err)
			continue
		}
		t.late = append(t.late, c)
	}
	return nil
}

// needed reports whether there is anything to do.
func (t *takeover) needed() bool { return len(t.carried)+len(t.late) > 0 }

// copy does the first pass. The maps are those of the present programs.
func (t *takeover) copy(maps map[string]*ebpf.Map) {
	t.begun = monotime.Now() - monotime.Time(clockTick)
	deadline := time.Now().Add(firstPass)
	var names []string
	for _, c := range t.carried {
		if c.restarts {
			continue
		}
		c.to = maps[c.name]
		begun := time.Now()
		sum, err := c.copy(deadline)
		log := t.log.With("map", c.name, "entries", sum.copied, "took", time.Since(begun).Round(time.Microsecond),
			"added", c.value.added, "dropped", c.value.dropped)
		if err != nil || sum.noRoom > 0 {
			log.Error("not all entries of a pinned map could be carried to this version", "noRoom", sum.noRoom, "error", err)
		} else {
			log.Debug("carried a pinned map to this version")
			names = append(names, c.name)
		}
		if lateMaps[c.name] != nil {
			t.late = append(t.late, c)
		}
	}
	t.log.Info("pinned maps have another layout or size: carried their entries to this version", "maps", names,
		"took", (monotime.Now().Sub(t.begun) - clockTick).Round(time.Microsecond))
}

// swap puts the pins of the present maps where the next process looks for them.
func (t *takeover) swap(maps map[string]*ebpf.Map, cfg *Config) error {
	if err := os.MkdirAll(cfg.nextDir(), 0o700); err != nil {
		return fmt.Errorf("creating a directory for pins: %w", err)
	}
	for name, m := range maps {
		if err := m.Pin(filepath.Join(cfg.nextDir(), name)); err != nil {
			return fmt.Errorf("pinning the map %s: %w", name, err)
		}
	}
	// The pins are from an earlier process; this one has its maps open.
	if err := os.RemoveAll(cfg.formerDir()); err != nil {
		return fmt.Errorf("removing pins of the former maps: %w", err)
	}
	if err := os.Rename(cfg.mapsDir(), cfg.formerDir()); err != nil {
		return fmt.Errorf("keeping the former maps: %w", err)
	}
	if err := os.Rename(cfg.nextDir(), cfg.mapsDir()); err != nil {
		return errors.Join(fmt.Errorf("replacing the former maps: %w", err), os.Rename(cfg.formerDir(), cfg.mapsDir()))
	}
	return nil
}

// copyChanges does the second pass, once no program of the former version is attached.
func (t *takeover) copyChanges(maps map[string]*ebpf.Map) {
	deadline := time.Now().Add(secondPass)
	for _, c := range t.late {
		c.to = maps[c.name]
		begun := time.Now()
		sum, err := c.copySince(t.begun, deadline)
		log := t.log.With("map", c.name, "entries", sum.copied, "took", time.Since(begun).Round(time.Microsecond))
		if err != nil || sum.noRoom > 0 {
			log.Error("not all changes of a pinned map could be carried to this version", "noRoom", sum.noRoom, "error", err)
		} else {
			log.Info("carried what the former programs have changed meanwhile")
		}
	}
}

// copySince copies the entries that have changed since a time. The present programs have not changed them: they handle
// no segment until then.
func (c *carriage) copySince(since monotime.Time, deadline time.Time) (sum carried, err error) {
	changed := lateMaps[c.name]
	err = c.each(deadline, func(b *batch, n int) error {
		return c.write(b, b.keep(n, func(value []byte) bool { return changed(value) >= since }), &sum)
	})
	return sum, err
}

// close forgets the former maps. Their pins stay.
func (t *takeover) close() error {
	var errs []error
	for _, m := range t.former {
		errs = append(errs, m.Close())
	}
	t.former = nil
	return errors.Join(errs...)
}

// pinnedMaps returns the maps that are pinned, by name.
func (o *gateObjects) pinnedMaps() map[string]*ebpf.Map {
	out := map[string]*ebpf.Map{}
	maps := reflect.ValueOf(&o.gateMaps).Elem()
	for i := range maps.NumField() {
		if name := maps.Type().Field(i).Tag.Get("ebpf"); name != gateMapScratch {
			out[name] = maps.Field(i).Interface().(*ebpf.Map)
		}
	}
	return out
}
