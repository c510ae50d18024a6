// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func nodes(n int) []Node {
	out := make([]Node, n)
	for i := range out {
		out[i] = Node{Name: fmt.Sprintf("node-%d", i), Known: true}
	}
	return out
}

// service is one with images that are pulled if they are not present.
func service(key string, on int, refs ...string) Service {
	s := Service{Key: key, Nodes: on}
	for _, r := range refs {
		s.Images = append(s.Images, Image{Ref: r, Name: r, Policy: corev1.PullIfNotPresent})
	}
	return s
}

func many(n, on int) []Service {
	out := make([]Service, n)
	for i := range out {
		out[i] = service(fmt.Sprintf("default/s%d", i), on, fmt.Sprintf("image-%d", i))
	}
	return out
}

func TestServicesWithOneImageShareIt(t *testing.T) {
	var services []Service
	for i := range 50 {
		services = append(services, service(fmt.Sprintf("default/s%d", i), 2, "one"))
	}
	p := Place(services, nodes(10), 4096)
	if len(p.Wants) != 2 {
		t.Errorf("on %d nodes", len(p.Wants))
	}
	for node, wants := range p.Wants {
		if len(wants) != 1 {
			t.Errorf("%s pulls %v", node, wants)
		}
	}
}

// A tag that was resolved is another image for the nodes, but on the same nodes.
func TestADigestMovesNoImage(t *testing.T) {
	by := service("default/a", 2, "r.example/app:v1")
	fixed := service("default/a", 2, "r.example/app:v1")
	fixed.Images[0].Name = "r.example/app@sha256:5"
	before, after := Place([]Service{by}, nodes(10), 4096), Place([]Service{fixed}, nodes(10), 4096)
	if !reflect.DeepEqual(before.Nodes, after.Nodes) {
		t.Errorf("moved from %v to %v", before.Nodes, after.Nodes)
	}
	for node, wants := range after.Wants {
		if len(wants) != 1 || wants[0].Name != fixed.Images[0].Name {
			t.Errorf("%s wants %v", node, wants)
		}
	}
}

func TestImagesAreOnAsManyNodesAsAskedForAndSpreadEvenly(t *testing.T) {
	p := Place(many(3000, 2), nodes(10), 4096)
	for key, on := range p.Nodes {
		if len(on) != 2 || on[0] == on[1] {
			t.Fatalf("%s is on %v", key, on)
		}
	}
	for node, wants := range p.Wants {
		if n := len(wants); n < 500 || n > 700 {
			t.Errorf("%s has %d of 6000 images, want about 600", node, n)
		}
	}
	all := Place([]Service{service("a", 0, "i")}, nodes(7), 4096)
	if len(all.Nodes["a"]) != 7 || len(all.Wants) != 7 {
		t.Errorf("all nodes: %v", all.Nodes)
	}
	few := Place([]Service{service("a", 5, "i")}, nodes(3), 4096)
	if len(few.Nodes["a"]) != 3 || len(few.Full) != 0 {
		t.Errorf("more than there are: %+v", few)
	}
	if none := Place([]Service{service("a", 2, "i")}, nil, 4096); len(none.Nodes["a"]) != 0 {
		t.Errorf("without nodes: %+v", none)
	}
}

// A node that comes takes images over only for itself, and one that goes leaves only its own to others.
func TestComingAndGoingOfANodeMovesOnlyItsImages(t *testing.T) {
	services := many(1000, 2)
	before, after := Place(services, nodes(9), 4096), Place(services, nodes(10), 4096)
	moved := 0
	for key, on := range after.Nodes {
		for _, node := range on {
			if !slices.Contains(before.Nodes[key], node) {
				moved++
				if node != "node-9" {
					t.Fatalf("%s moved from %v to %v", key, before.Nodes[key], on)
				}
			}
		}
	}
	if moved < 120 || moved > 280 {
		t.Errorf("%d of 2000 moved, want about 200", moved)
	}
}

func TestOrderOfServicesAndNodesDoesNotMatter(t *testing.T) {
	services, list := many(50, 2), nodes(5)
	services[3].Images[0].Policy, services[4].Images = corev1.PullAlways, services[3].Images
	want := Place(services, list, 4096)
	slices.Reverse(services)
	slices.Reverse(list)
	if got := Place(services, list, 4096); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestServicesWithTheSameImagesShareNodesAndPulls(t *testing.T) {
	var services []Service
	for i := range 50 {
		services = append(services, service(fmt.Sprintf("s%d", i), 2, "app", "sidecar"))
	}
	services[7].Images[0], services[7].Images[1] = services[7].Images[1], services[7].Images[0]
	p := Place(services, nodes(10), 4096)
	if len(p.Wants) != 2 {
		t.Errorf("images on %d nodes", len(p.Wants))
	}
	for node, wants := range p.Wants {
		if len(wants) != 2 {
			t.Errorf("%s has %v", node, wants)
		}
	}
}

func TestAlwaysWinsAndPullsAgainWhenItsServiceChanges(t *testing.T) {
	a, b := service("a", 1, "i"), service("b", 1, "i")
	revision := func() Want {
		p := Place([]Service{a, b}, nodes(1), 4096)
		return p.Wants["node-0"][0]
	}
	a.Images[0].Policy = corev1.PullNever
	if w := revision(); w.Policy != corev1.PullIfNotPresent || w.Revision != 0 {
		t.Errorf("Never and IfNotPresent: %+v", w)
	}
	b.Images[0].Policy, b.Hash = corev1.PullAlways, "1"
	first := revision()
	a.Hash = "2"
	if w := revision(); w != first || w.Policy != corev1.PullAlways {
		t.Errorf("%+v, and after a change of the other service %+v", first, w)
	}
	b.Hash = "2"
	if revision() == first {
		t.Error("the revision stays when the service changes")
	}
}

func TestANodeHasNoMoreImagesThanItMay(t *testing.T) {
	services := many(100, 2)
	p := Place(services, nodes(3), 10)
	for node, wants := range p.Wants {
		if len(wants) != 10 {
			t.Errorf("%s has %d images", node, len(wants))
		}
	}
	for _, s := range services {
		if full := len(p.Nodes[s.Key]) < 2; full != p.Full[s.Key] {
			t.Errorf("%s is on %v, full: %t", s.Key, p.Nodes[s.Key], p.Full[s.Key])
		}
	}
	if got := slices.Collect(maps.Keys(p.Full)); len(got) < 80 {
		t.Errorf("%d services lack room", len(got))
	}
}

func TestImagesAreWherePodsCouldRun(t *testing.T) {
	list := nodes(6)
	list[0].Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	list[1].Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}}
	list[2].Labels = map[string]string{"disk": "ssd", "cores": "8"}
	list[3].Labels = map[string]string{"disk": "hdd", "cores": "4"}
	list[4].Known = false
	term := func(r ...corev1.NodeSelectorRequirement) *corev1.PodSpec {
		return &corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: r}},
			},
		}}}
	}
	for name, c := range map[string]struct {
		pod  *corev1.PodSpec
		want []string
	}{
		"any": {nil, []string{"node-1", "node-2", "node-3", "node-4", "node-5"}},
		"tolerates": {
			&corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
			[]string{"node-0", "node-1", "node-2", "node-3", "node-4", "node-5"},
		},
		"selector":  {&corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}, []string{"node-2", "node-4"}},
		"node name": {&corev1.PodSpec{NodeName: "node-5"}, []string{"node-4", "node-5"}},
		"in": {
			term(corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd", "hdd"}}),
			[]string{"node-2", "node-3", "node-4"},
		},
		"more than": {
			term(corev1.NodeSelectorRequirement{Key: "cores", Operator: corev1.NodeSelectorOpGt, Values: []string{"5"}}),
			[]string{"node-2", "node-4"},
		},
		"not valid": {
			term(corev1.NodeSelectorRequirement{Key: "disk", Operator: "Unknown"}), []string{"node-4"},
		},
		"empty term": {term(), []string{"node-4"}},
	} {
		s := service("a", 0, "i")
		s.Pod = c.pod
		got := Place([]Service{s}, list, 4096).Nodes["a"]
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	services, list := many(10000, 2), nodes(100)
	for b.Loop() {
		Place(services, list, 4096)
	}
}
