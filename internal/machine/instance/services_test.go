// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
)

// fakeKeeper is a controller that remembers what it was given last.
type fakeKeeper struct {
	put    []controller.Service
	remove []v1alpha1.Key
	synced bool
	err    error
}

func (k *fakeKeeper) Update(put []controller.Service, remove []v1alpha1.Key) error {
	if k.err == nil {
		k.put, k.remove = put, remove
	}
	return k.err
}

func (k *fakeKeeper) Synced(context.Context) error {
	k.synced = true
	return nil
}

func TestApplyGivesAddressesAndRemovesWhatIsNotListed(t *testing.T) {
	k, dir := &fakeKeeper{}, t.TempDir()
	addresses := netip.MustParsePrefix("10.0.0.0/29")
	s, err := newServices(k, slog.New(slog.DiscardHandler), dir, addresses, unpublished)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(names ...string) {
		t.Helper()
		if err := s.apply(t.Context(), wants(names...)); err != nil {
			t.Fatal(err)
		}
	}
	apply("a", "b")
	if !k.synced || len(k.put) != 2 || len(k.remove) != 0 || !k.put[1].Announce || k.put[1].Addr.String() != "10.0.0.3" {
		t.Fatalf("put %+v, removed %v", k.put, k.remove)
	}
	apply("b", "c")
	if !slices.Equal(k.remove, []v1alpha1.Key{"default/a"}) || k.put[0].Addr.String() != "10.0.0.3" {
		t.Errorf("put %+v, removed %v", k.put, k.remove)
	}
	// An update that fails changes nothing: the next one removes what this one should have.
	k.err = errors.New("closed")
	if err := s.apply(t.Context(), wants("c")); !errors.Is(err, k.err) {
		t.Errorf("%v", err)
	}
	k.err = nil
	apply("c")
	if !slices.Equal(k.remove, []v1alpha1.Key{"default/b"}) {
		t.Errorf("removed %v", k.remove)
	}
	// The next instance gives the same addresses.
	again := &fakeKeeper{}
	if s, err = newServices(again, slog.New(slog.DiscardHandler), dir, addresses, unpublished); err != nil {
		t.Fatal(err)
	}
	if apply("b"); again.put[0].Addr.String() != "10.0.0.3" {
		t.Errorf("b has another address now: %+v", again.put)
	}
}

func TestNoServiceIsTold(t *testing.T) {
	var log strings.Builder
	s, err := newServices(&fakeKeeper{}, slog.New(slog.NewTextHandler(&log, nil)), t.TempDir(),
		netip.MustParsePrefix("10.0.0.0/29"), unpublished)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		names []string
		told  bool
	}{{nil, true}, {[]string{"a"}, false}, {nil, true}} {
		log.Reset()
		if err := s.apply(t.Context(), wants(c.names...)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "0 services: no manifest is in"); got != c.told {
			t.Errorf("%q: logged %q", c.names, log.String())
		}
	}
}

func TestApplyRefusesWhatCannotBe(t *testing.T) {
	k := &fakeKeeper{}
	s, err := newServices(k, slog.New(slog.DiscardHandler), t.TempDir(), netip.MustParsePrefix("10.0.0.0/29"), unpublished)
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]string{"given twice": {"a", "a"}, "an address outside": {"b=10.1.1.1"}} {
		if err := s.apply(t.Context(), wants(list...)); err == nil || k.put != nil {
			t.Errorf("%s: %v, put %v", name, err, k.put)
		}
	}
}

func unpublished(publication) {}
