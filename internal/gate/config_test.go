// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// memory returns how much memory the maps of a gate take.
func (w *world) memory() (sum uint64) {
	w.Helper()
	maps := reflect.ValueOf(&w.g.objs.gateMaps).Elem()
	for i := range maps.NumField() {
		info, err := maps.Field(i).Interface().(*ebpf.Map).Info()
		w.must(err)
		bytes, _ := info.Memlock()
		sum += bytes
	}
	return sum
}

// BenchmarkTableMemory reports what an entry of each table takes, before it is used and altogether.
func BenchmarkTableMemory(b *testing.B) {
	const more = 1 << 14
	var was uint64
	for _, c := range []struct {
		table string
		grow  func(s *Sizes)
		fill  func(w *world)
	}{
		{"defaults", func(*Sizes) {}, func(w *world) { was = w.memory() }},
		{"services", func(s *Sizes) { s.Services += more }, func(w *world) {
			for i := range more {
				w.service(numberedService(i), 100, 100)
			}
		}},
		{"pods", func(s *Sizes) { s.Pods += more }, func(w *world) {
			w.service(vip, 100, 100)
			for i := range more {
				w.must(w.g.AddPod(Pod{ID: uint64(i + 1), Service: vip, Node: otherNode, Addr: podAt[1]}))
			}
		}},
		{"flows", func(s *Sizes) { s.Flows += more }, func(w *world) { w.fillFlows(more) }},
		{"parked", func(s *Sizes) { s.Parked += more }, func(*world) {}},
	} {
		b.Run(c.table, func(b *testing.B) {
			w := newRemoteWorld(b, func(g *Config) { g.Sizes = DefaultSizes(); c.grow(&g.Sizes) })
			empty := w.memory()
			c.fill(w)
			full := w.memory()
			b.ReportMetric(float64(empty-was)/more, "bytes/empty")
			b.ReportMetric(float64(full-was)/more, "bytes/used")
			b.Logf("maps: %d bytes before", was)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// Sizes that cannot work are refused before anything is created, by the name of their flag.
func TestSizesAreChecked(t *testing.T) {
	for flag, s := range map[string]Sizes{
		"--services": {Services: 100_001}, "--pods": {Pods: 2_000_000}, "--flows": {Flows: 1 << 30},
		"--parked": {Parked: 1 << 21}, "ring": {Ring: 3},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if err := DefaultSizes().Check(); err != nil {
		t.Error(err)
	}
	if err := (Sizes{}).Check(); err != nil {
		t.Error(err)
	}
}

// The tables have the sizes of the configuration, refuse what is beyond them by name, and tell how full they are.
func TestTablesHaveTheirSizes(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes = Sizes{Services: 2, Pods: 1, Flows: 100, Parked: 10} })
	w.service(vip, 10, 10)
	w.service(vip2, 10, 10)
	w.addPod(vip, 1)
	_, err := w.g.SetService(Service{Addr: netip.AddrPortFrom(vip.Addr(), 81)})
	if err == nil || !strings.Contains(err.Error(), "2 services: raise --services") {
		t.Errorf("a third service: %v", err)
	}
	err = w.g.AddPod(Pod{ID: 2, Service: vip, Addr: podAt[2], Ifindex: w.podLink[2].Attrs().Index})
	if err == nil || !strings.Contains(err.Error(), "1 pods: raise --pods") {
		t.Errorf("a second pod: %v", err)
	}
	w.run(onNIC, w.syn(1000).frame())
	w.must(w.g.RemovePod(vip, 1))
	w.must(w.g.RemoveService(vip2))
	if n := w.g.objs.Flows.MaxEntries(); n != 100 {
		t.Errorf("room for %d flows", n)
	}
	want := map[string]Fill{
		"services": {Table: "services", Flag: "--services", Used: 1, Size: 2},
		"pods":     {Table: "pods", Flag: "--pods", Size: 1},
		"parked":   {Table: "parked", Flag: "--parked", Used: 1, Size: 10},
		// A service that leaves none for others refuses every source of these.
		"source_rules": {Table: "source_rules", Used: 3, Size: 1 << 22},
	}
	w.restricted(vip, "192.0.2.0/24", "198.51.100.0/24", "-198.51.100.7/32")
	for _, f := range w.g.Fills() {
		if f != want[f.Table] {
			t.Errorf("%+v, want %+v", f, want[f.Table])
		}
	}
}

// A kernel without tcx fails to load the gate with messages of the verifier; the reason is named beside them.
func TestOldKernelIsNamedAsTheReason(t *testing.T) {
	for release, want := range map[string]string{
		"6.1.0-44-amd64":       "Linux 6.1.0-44-amd64 is too old: boot Linux 6.6 or later",
		"5.14.0-503.el9":       "is too old",
		"6.6.0":                "wangell doctor",
		"6.12.117+deb13-amd64": "wangell doctor",
		"7.0-rc1":              "wangell doctor",
		"":                     "wangell doctor",
	} {
		if got := loadHint(release); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
}
