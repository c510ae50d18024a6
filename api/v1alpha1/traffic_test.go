// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
)

// splitting returns a service whose requests go to two others.
func splitting(change func(*WangellServiceSpec)) *WangellService {
	s := &WangellService{Spec: WangellServiceSpec{
		Port:    80,
		Traffic: []Revision{{Revision: "shop-v1", Percent: 90}, {Revision: "shop-v2", Percent: 10, Tag: "canary"}},
	}}
	s.Name = "shop"
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func TestTrafficIsValidated(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*WangellServiceSpec)
		want   string // of the first error; empty for none
	}{
		"two revisions":    {nil, ""},
		"all to one":       {func(s *WangellServiceSpec) { s.Traffic[0].Percent, s.Traffic[1].Percent = 0, 100 }, ""},
		"sticky by header": {func(s *WangellServiceSpec) { s.Sticky = &Sticky{Header: "X-User"} }, ""},
		"sticky by cookie": {func(s *WangellServiceSpec) { s.Sticky = &Sticky{Cookie: "rev_1", MaxAge: 60} }, ""},
		"what the API server fills in": {func(s *WangellServiceSpec) {
			n := int32(0)
			s.IdleTimeout, s.WakeTimeout, s.MaxParked, s.Replicas = 300, 60, 1024, &n
		}, ""},
		"too much": {func(s *WangellServiceSpec) { s.Traffic[0].Percent = 95 },
			"spec.traffic: the percentages add up to 105, and not to 100: write percent: 5 for shop-v2, for example"},
		"too little": {func(s *WangellServiceSpec) { s.Traffic[1].Percent = 0 },
			"spec.traffic: the percentages add up to 90, and not to 100: write percent: 10 for shop-v2, for example"},
		"more than all": {func(s *WangellServiceSpec) { s.Traffic[0].Percent, s.Traffic[1].Percent = 101, -1 },
			"spec.traffic[0].percent: want a percentage from 0 to 100, got 101"},
		"the same twice": {func(s *WangellServiceSpec) { s.Traffic[1].Revision = "shop-v1" },
			"spec.traffic[1].revision: shop-v1 is listed twice"},
		"no name": {func(s *WangellServiceSpec) { s.Traffic[0].Revision = "" }, "spec.traffic[0].revision: missing"},
		"a name that cannot be": {func(s *WangellServiceSpec) { s.Traffic[0].Revision = "Shop/v1" },
			"spec.traffic[0].revision: want a DNS label"},
		"a tag that cannot be": {func(s *WangellServiceSpec) { s.Traffic[1].Tag = "the canary" },
			"spec.traffic[1].tag: want a DNS label"},
		"a tag twice": {func(s *WangellServiceSpec) { s.Traffic[0].Tag = "canary" },
			"spec.traffic[1].tag: canary is the tag of another revision"},
		"pods as well": {func(s *WangellServiceSpec) { s.Image = "a:1" },
			"spec.image: cannot be set beside traffic: the service has no pods of its own"},
		"scaling": {func(s *WangellServiceSpec) { s.MinReplicas = 1 }, "spec.minReplicas: cannot be set beside traffic"},
		"connections": {func(s *WangellServiceSpec) { s.Balancing = &Balancing{Level: LevelConnection} },
			"spec.balancing.level: traffic needs level: Request"},
		"a limit of pods": {func(s *WangellServiceSpec) {
			s.Balancing = &Balancing{Level: LevelRequest, MaxRequestsPerPod: 1}
		}, "spec.balancing.maxRequestsPerPod: cannot be set beside traffic"},
		"a tag without headers": {func(s *WangellServiceSpec) {
			s.Balancing = &Balancing{Level: LevelRequest, Protocol: ProtocolTCP}
		}, "spec.traffic[1].tag: needs requests with headers"},
		"sticky by nothing": {func(s *WangellServiceSpec) { s.Sticky = &Sticky{} }, "spec.sticky: want header or cookie"},
		"sticky by both": {func(s *WangellServiceSpec) { s.Sticky = &Sticky{Header: "a", Cookie: "b"} },
			"spec.sticky: want header or cookie"},
		"a cookie that ends others": {func(s *WangellServiceSpec) { s.Sticky = &Sticky{Cookie: "a; b"} },
			"spec.sticky.cookie: want the name of a cookie"},
		"the age of a header": {func(s *WangellServiceSpec) { s.Sticky = &Sticky{Header: "a", MaxAge: 1} },
			"spec.sticky.maxAge: is that of a cookie"},
		"sticky without traffic": {func(s *WangellServiceSpec) {
			s.Traffic, s.Image, s.Sticky = nil, "a:1", &Sticky{Cookie: "a"}
		}, "spec.sticky: needs traffic"},
		"nine": {func(s *WangellServiceSpec) {
			s.Traffic = nil
			for i := range 9 {
				s.Traffic = append(s.Traffic, Revision{Revision: "v" + string(rune('0'+i))})
			}
			s.Traffic[0].Percent = 100
		}, "spec.traffic: 9 revisions, at most 8"},
	} {
		s := splitting(c.change)
		for where, errs := range map[string]ValidationErrors{
			"before defaults": ValidateCluster(s), "after them": ValidateCluster(defaulted(s)),
		} {
			switch {
			case c.want == "" && len(errs) > 0:
				t.Errorf("%s, %s: %v", name, where, errs)
			case c.want != "" && (len(errs) == 0 || !strings.Contains(errs.Error(), c.want)):
				t.Errorf("%s, %s: %v, want %s", name, where, errs, c.want)
			}
		}
	}
	if errs := Validate(defaulted(splitting(nil))); len(errs) > 0 {
		t.Errorf("on one machine: %v", errs)
	}
	if errs := ValidateWithoutEnvoy(splitting(nil)); len(errs) != 1 || errs[0].Field != "spec.traffic" {
		t.Errorf("without Envoy: %v", errs)
	}
}

func defaulted(s *WangellService) *WangellService {
	s = s.DeepCopy()
	Default(s)
	return s
}

func TestServicesThatBalanceRequestsCanBeRevisions(t *testing.T) {
	s := &WangellService{Spec: WangellServiceSpec{Image: "a:1", Balancing: &Balancing{Level: LevelRequest}}}
	if why, _ := CheckRevision(s); why != "" {
		t.Error(why)
	}
	s.Spec.Balancing = nil
	if why, fix := CheckRevision(s); why != "it balances connections" || !strings.Contains(fix, "level: Request") {
		t.Errorf("%s: %s", why, fix)
	}
	if why, _ := CheckRevision(splitting(nil)); why != "it has traffic itself" {
		t.Error(why)
	}
}
