// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// shares returns traffic to v1 and v2.
func shares(first int32) []v1alpha1.Revision {
	return []v1alpha1.Revision{
		{Revision: "v1", Percent: first}, {Revision: "v2", Percent: 100 - first, Tag: "canary"},
	}
}

// splitting returns services of which the first one has traffic.
func splitting(first int32) []*v1alpha1.WangellService {
	list := wants("shop", "v1", "v2")
	list[0].Spec = v1alpha1.WangellServiceSpec{Port: 80, Traffic: shares(first)}
	for _, s := range list[1:] {
		s.Spec.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	}
	for _, s := range list {
		v1alpha1.Default(s)
	}
	return list
}

func TestMovedTrafficLastsUntilTheManifestChanges(t *testing.T) {
	dir := t.TempDir()
	var k *fakeKeeper
	start := func() *services {
		k = &fakeKeeper{}
		s, err := newServices(k, slog.New(slog.DiscardHandler), dir, netip.MustParsePrefix("10.0.0.0/24"), unpublished)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	has := func(percent int32) {
		t.Helper()
		for _, p := range k.put {
			if p.Spec.Name == "shop" && p.Spec.Spec.Traffic[0].Percent != percent {
				t.Errorf("v1 gets %d %%, want %d", p.Spec.Spec.Traffic[0].Percent, percent)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := start()
	manifest := splitting(90)
	must(s.apply(t.Context(), manifest))
	has(90)
	must(s.setTraffic(t.Context(), "default/shop", shares(90), shares(0)))
	has(0)
	if manifest[0].Spec.Traffic[0].Percent != 90 {
		t.Error("the manifest was changed")
	}
	// Another change of manifests, and another instance, leave it.
	must(s.apply(t.Context(), splitting(90)))
	has(0)
	s = start()
	must(s.apply(t.Context(), splitting(90)))
	has(0)
	must(s.setTraffic(t.Context(), "default/shop", shares(0), shares(30)))
	has(30)

	// What does not fit is refused, and changes nothing.
	other := append(shares(50)[:1:1], v1alpha1.Revision{Revision: "v3", Percent: 50})
	for why, err := range map[string]error{
		"its traffic has changed meanwhile":   s.setTraffic(t.Context(), "default/shop", shares(0), shares(10)),
		"among the revisions of the manifest": s.setTraffic(t.Context(), "default/shop", shares(30), other),
		"add up to 90": s.setTraffic(t.Context(), "default/shop", shares(30), []v1alpha1.Revision{
			{Revision: "v1", Percent: 40}, {Revision: "v2", Percent: 50, Tag: "canary"},
		}),
	} {
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	if err := s.setTraffic(t.Context(), "default/none", nil, nil); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("a service that is not there: %v", err)
	}
	has(30)
	// A controller that refuses keeps the traffic.
	k.err = errors.New("closed")
	if err := s.setTraffic(t.Context(), "default/shop", shares(30), shares(60)); !errors.Is(err, k.err) {
		t.Error(err)
	}
	k.err = nil
	must(s.apply(t.Context(), splitting(90)))
	has(30)

	// A manifest with other traffic counts.
	must(s.apply(t.Context(), splitting(80)))
	has(80)
	must(s.apply(t.Context(), splitting(90)))
	has(90)
	if data, err := os.ReadFile(filepath.Join(dir, rolloutFile)); err != nil || strings.Contains(string(data), "shop") {
		t.Errorf("the file has it still: %v, %s", err, data)
	}
}

func TestBrokenFileOfTrafficIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, rolloutFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := newServices(&fakeKeeper{}, slog.New(slog.DiscardHandler), dir, netip.MustParsePrefix("10.0.0.0/24"),
		unpublished)
	if err == nil || !strings.Contains(err.Error(), rolloutFile) {
		t.Errorf("%v", err)
	}
}
