// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The verifier takes half a second of CPU time for the gate's programs, far longer than most tests. Programs and
// maps are therefore used again by the next gate with the same configuration; the gate itself, its devices, pins and
// attachments are new, and its maps are empty. Tests of Open call Open.

// loaded are the programs and maps of a closed gate.
type loaded struct {
	cfg   Config
	objs  gateObjects
	inner int // interface index and MAC address of wangell0: constants of the programs
	mac   []byte
}

// spares are the loaded programs that no gate uses, the oldest first.
var spares struct {
	sync.Mutex
	all []*loaded
}

// maxSpares limits the memory that spare maps take: tens of MiB each.
const maxSpares = 8

// loadKey returns what programs and maps depend on. The key of challenges is compared apart.
func loadKey(c Config) string {
	c = c.withDefaults()
	c.Dir, c.BPFDir, c.Log, c.ProofKey = "", "", nil, [16]byte{}
	c.Interfaces, c.DefaultInterfaces, c.SYNTimeout, c.XDPMode = nil, false, 0, "" // only matter to the Go side
	return fmt.Sprintf("%+v", c)
}

// takeSpare returns spare programs for a configuration, nil if there are none.
func takeSpare(cfg *Config) *loaded {
	spares.Lock()
	defer spares.Unlock()
	for i, l := range slices.Backward(spares.all) {
		anyKey := cfg.ProofKey == [16]byte{}
		if loadKey(l.cfg) == loadKey(*cfg) && (anyKey || cfg.ProofKey == l.cfg.ProofKey) {
			spares.all = slices.Delete(spares.all, i, i+1)
			return l
		}
	}
	return nil
}

// addSpare adds loaded programs to the spare ones.
func addSpare(l *loaded) {
	spares.Lock()
	defer spares.Unlock()
	spares.all = append(spares.all, l)
	if len(spares.all) > maxSpares {
		_ = spares.all[0].objs.Close()
		spares.all = slices.Delete(spares.all, 0, 1)
	}
}

// openAny is like Open and uses spare programs if it can.
func openAny(cfg Config) (*Gate, error) {
	l := takeSpare(&cfg)
	if l == nil {
		return Open(cfg)
	}
	err := l.addDevice(cfg.owner())
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		addSpare(l) // another device has this index
		return Open(cfg)
	}
	if err != nil {
		return nil, err
	}
	cfg.ProofKey = l.cfg.ProofKey
	g := newGate(cfg.withDefaults())
	if err := l.start(g); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// addDevice creates wangell0 as the programs know it.
func (l *loaded) addDevice(owner string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.HardwareAddr = InnerDevice, l.inner, l.mac
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: OuterDevice}); err != nil {
		return fmt.Errorf("creating %s with index %d: %w", InnerDevice, l.inner, err)
	}
	inner, err := netlink.LinkByName(InnerDevice)
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(inner, aliasOf(owner))
}

// start opens a gate with these programs and maps.
func (l *loaded) start(g *Gate) error {
	if err := g.cfg.check(); err != nil {
		return err
	}
	return g.open(func() error {
		g.objs = l.objs
		return g.objs.eachMap(func(name string, m *ebpf.Map) error {
			if name == gateMapScratch {
				return nil
			}
			return m.Pin(filepath.Join(g.cfg.mapsDir(), name))
		})
	})
}

// closeAny closes and removes an open gate, and keeps its programs for the next one. remove is called to remove it.
func closeAny(g *Gate, remove func() error) error {
	l, err := g.keepLoaded()
	if err := errors.Join(err, g.Close(), remove()); err != nil {
		return err
	}
	if err := l.empty(); err != nil {
		return err
	}
	addSpare(l)
	return nil
}

// keepLoaded returns the programs and maps of an open gate, to be used when it is closed.
func (g *Gate) keepLoaded() (*loaded, error) {
	l := &loaded{cfg: g.cfg, inner: g.dev.inner, mac: g.dev.innerMAC}
	l.objs.gateVariables = g.objs.gateVariables
	for _, of := range []struct{ from, to any }{
		{&g.objs.gatePrograms, &l.objs.gatePrograms},
		{&g.objs.gateMaps, &l.objs.gateMaps},
	} {
		from, to := reflect.ValueOf(of.from).Elem(), reflect.ValueOf(of.to).Elem()
		for i := range from.NumField() {
			var copied any
			var err error
			switch object := from.Field(i).Interface().(type) {
			case *ebpf.Map:
				copied, err = object.Clone()
			case *ebpf.Program:
				copied, err = object.Clone()
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", from.Type().Field(i).Name, err)
			}
			to.Field(i).Set(reflect.ValueOf(copied))
		}
	}
	return l, nil
}

// eachMap calls f with the name and each map.
func (o *gateObjects) eachMap(f func(name string, m *ebpf.Map) error) error {
	maps := reflect.ValueOf(&o.gateMaps).Elem()
	for i := range maps.NumField() {
		name := maps.Type().Field(i).Tag.Get("ebpf")
		if err := f(name, maps.Field(i).Interface().(*ebpf.Map)); err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
	}
	return nil
}

// empty makes the maps and variables what they are after load.
func (l *loaded) empty() error {
	if err := l.objs.VipsOutsideRanges.Set(uint32(0)); err != nil {
		return err
	}
	return l.objs.eachMap(func(_ string, m *ebpf.Map) error {
		switch m.Type() {
		case ebpf.ProgramArray: // filled by load
			return nil
		case ebpf.RingBuf:
			return dropRecords(m)
		case ebpf.Array, ebpf.PerCPUArray:
			return clearArray(m)
		default:
			return deleteAll(m)
		}
	})
}

// dropRecords reads all records of a ring buffer.
func dropRecords(m *ebpf.Map) error {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return err
	}
	r.SetDeadline(time.Unix(0, 1))
	for err == nil {
		_, err = r.Read()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(err, r.Close())
	}
	return r.Close()
}

// clearArray sets all values of an array to zero.
func clearArray(m *ebpf.Map) error {
	if m.Flags()&unix.BPF_F_MMAPABLE != 0 {
		size := int(m.MaxEntries()) * int((m.ValueSize()+7)&^7)
		b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		clear(b)
		return unix.Munmap(b)
	}
	perKey := int(m.ValueSize())
	if m.Type() == ebpf.PerCPUArray {
		perKey = (perKey + 7) &^ 7 * ebpf.MustPossibleCPU()
	}
	keys, values := make([]uint32, m.MaxEntries()), make([]byte, int(m.MaxEntries())*perKey)
	for i := range keys {
		keys[i] = uint32(i)
	}
	// Map.BatchUpdate encodes value after value, which takes longer than most tests.
	attr := struct { // union bpf_attr, BPF_MAP_UPDATE_BATCH
		_, _         uint64
		keys, values unsafe.Pointer
		count, fd    uint32
		_, _         uint64
	}{keys: unsafe.Pointer(&keys[0]), values: unsafe.Pointer(&values[0]), count: m.MaxEntries(), fd: uint32(m.FD())}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_UPDATE_BATCH, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr))
	runtime.KeepAlive(keys)
	runtime.KeepAlive(values)
	runtime.KeepAlive(m)
	if errno != 0 {
		return errno
	}
	if attr.count != m.MaxEntries() {
		return fmt.Errorf("%d of %d values are set", attr.count, m.MaxEntries())
	}
	return nil
}

// deleteAll deletes all keys of a map.
func deleteAll(m *ebpf.Map) error {
	var keys [][]byte
	var key []byte
	for {
		var previous any
		if key != nil {
			previous = key
		}
		next, err := m.NextKeyBytes(previous)
		if err != nil {
			return err
		}
		if next == nil {
			break
		}
		keys, key = append(keys, next), next
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// A gate with programs of an earlier one finds nothing of it: no key in a map, zeros in every array.
func TestReusedProgramsFindEmptyMaps(t *testing.T) {
	var cfg Config
	t.Run("a gate that is used", func(t *testing.T) {
		w := newWorld(t, func(c *Config) {
			c.Sizes = Sizes{Services: 100, Pods: 100, Flows: 1000, Parked: 100, Ring: 64}
			cfg = *c
		})
		connected(w)
		w.service(vip2, 100, 100)
		syn := w.syn(1)
		syn.to = vip2
		w.wantRun(onNIC, syn.frame(), tcxDrop)
		if syns, _, _ := w.parkedNow(); syns != 1 {
			t.Errorf("%d SYNs parked, want 1", syns)
		}
	})
	l := takeSpare(&cfg)
	if l == nil {
		t.Fatal("the programs of the closed gate are not kept")
	}
	defer addSpare(l)
	err := l.objs.eachMap(func(name string, m *ebpf.Map) error {
		var previous any
		zero := string(make([]byte, m.ValueSize()))
		for m.Type() != ebpf.ProgramArray && m.Type() != ebpf.RingBuf {
			key, err := m.NextKeyBytes(previous)
			if key == nil || err != nil {
				return err
			}
			previous = key
			switch m.Type() {
			case ebpf.Array:
				value, err := m.LookupBytes(key)
				if err != nil {
					return err
				}
				if string(value) != zero {
					t.Errorf("%s: entry %x is %x", name, key, value)
				}
			case ebpf.PerCPUArray:
				values := reflect.New(reflect.SliceOf(reflect.ArrayOf(len(zero), reflect.TypeFor[byte]())))
				if err := m.Lookup(key, values.Interface()); err != nil {
					return err
				}
				for i := range values.Elem().Len() {
					if !values.Elem().Index(i).IsZero() {
						t.Errorf("%s: entry %x is %v", name, key, values.Elem().Index(i))
					}
				}
			default:
				t.Errorf("%s has the key %x", name, key)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
