// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
)

// labPod is a pod as the API tells it.
func labPod(name string, labels map[string]string, ready, ending bool) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if ending {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return p
}

func TestMayBegin(t *testing.T) {
	wangell := map[string]string{v1alpha1.LabelService: wangellName}
	knative := map[string]string{knativeLabel: knativeName(true)}
	notoken := map[string]string{knativeLabel: knativeName(false)}
	floor := map[string]string{labelSide: SideFloor}
	for _, test := range []struct {
		name string
		pods []corev1.Pod
		side string
		want string // part of the error; empty for none
	}{
		{"nothing is there", nil, SideWangell, ""},
		{"a pod of its own", []corev1.Pod{labPod("a", wangell, true, false)}, SideWangell, "not be cold: pod a"},
		{"one of its own that is terminating", []corev1.Pod{labPod("a", knative, true, true)}, SideKnative, "terminating"},
		{"one of its own that only starts", []corev1.Pod{labPod("a", floor, false, false)}, SideFloor, "not be cold"},
		{"an idle one of the other Knative", []corev1.Pod{labPod("a", notoken, true, false)}, SideKnative, ""},
		{"another's is terminating", []corev1.Pod{labPod("a", knative, true, true)}, SideWangell, "not be alone"},
		{"another's starts", []corev1.Pod{labPod("a", knative, false, false)}, SideKnativeNoToken, "not be alone"},
		{"a stranger starts", []corev1.Pod{labPod("a", nil, false, false)}, SideFloor, "not be alone"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := mayBegin(test.pods, test.side)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestRoundOrder(t *testing.T) {
	sides := []side{&wangellSide{}, &floorSide{}, &knativeSide{token: true}, &knativeSide{}}
	names := func(order []side) (n []string) {
		for _, s := range order {
			n = append(n, s.name())
		}
		return n
	}
	for round, want := range []string{"wangell floor knative knative_notoken", "wangell floor knative_notoken knative"} {
		if got := strings.Join(names(roundOrder(sides, round)), " "); got != want {
			t.Errorf("round %d: %s, want %s", round, got, want)
		}
	}
	if got := strings.Join(names(roundOrder(sides[:3], 1)), " "); got != "wangell floor knative" {
		t.Errorf("one Knative alone: %s", got)
	}
	if strings.Join(names(sides), " ") != strings.Join(KnativeSides, " ") {
		t.Error("the sides themselves changed")
	}
}

func TestFloorPod(t *testing.T) {
	no := false
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelService: "x"}},
		Spec:       corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	p := floorPod(template, "ns", "floor-1")
	if sideOf(p) != SideFloor || p.Labels[v1alpha1.LabelService] != "" {
		t.Errorf("labels %v: others take it for theirs", p.Labels)
	}
	if p.Spec.AutomountServiceAccountToken == nil || p.Spec.Containers[0].Image != "i" {
		t.Errorf("it is not the template's pod: %+v", p.Spec)
	}
	p.Spec.Containers[0].Image = "other"
	if template.Spec.Containers[0].Image != "i" {
		t.Error("the template changed with the pod")
	}
}

func TestPodEvents(t *testing.T) {
	sandbox := func(ip string) *criv1.PodSandboxStatus {
		return &criv1.PodSandboxStatus{Id: "s", CreatedAt: 2, Network: &criv1.PodSandboxNetworkStatus{Ip: ip}}
	}
	events := make(chan *criv1.ContainerEventResponse, 8)
	send := func(id string, kind criv1.ContainerEventType, at int64, status *criv1.PodSandboxStatus) {
		events <- &criv1.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: at, PodSandboxStatus: status}
	}
	send("s", criv1.ContainerEventType_CONTAINER_CREATED_EVENT, 1, sandbox(""))
	send("s", criv1.ContainerEventType_CONTAINER_STARTED_EVENT, 9, sandbox("10.0.0.7"))
	send("c", criv1.ContainerEventType_CONTAINER_CREATED_EVENT, 11, sandbox("10.0.0.7"))
	e := podEvents{phases: map[lifecycle.PhaseName]time.Time{}}
	if err := e.until(t.Context(), lifecycle.PhaseCreated, events); err != nil {
		t.Fatal(err)
	}
	if e.addr != netip.MustParseAddr("10.0.0.7") || e.phases[lifecycle.PhaseSandbox].UnixNano() != 2 || e.phases[lifecycle.PhaseCreated].UnixNano() != 11 {
		t.Errorf("got %+v", e)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.until(ctx, lifecycle.PhaseStarted, events); err == nil {
		t.Error("a container that was not started was")
	}
}

func TestKnativeReport(t *testing.T) {
	raw := KnativeRaw{
		SideWangell: {{Done: 200, FirstByte: 199, Phases: map[string]float64{"syn-seen": 0, "sandbox": 100, "started": 150, "listening": 190}, Warm: []float64{1, 3}},
			{Done: 220, FirstByte: 219, Phases: map[string]float64{"syn-seen": 0, "sandbox": 120, "started": 160, "listening": 200}, Warm: []float64{2}}},
		SideFloor:          {{Done: 190, FirstByte: 190, Phases: map[string]float64{"sandbox": 100, "created": 110, "started": 150}}, {Done: 200, FirstByte: 199}},
		SideKnative:        {{Done: 1000}, {Done: 1100}, {Error: "refused", Done: 3}},
		SideKnativeNoToken: {{Done: 800, WarmErrors: []string{"reset"}}, {Done: 900}},
	}
	r := knativeReport(raw)
	for key, want := range map[string]float64{"wangell_mean_ms": 210, "wangell_median_ms": 210, "wangell_stddev_ms": math.Sqrt(200), "knative_mean_ms": 1050,
		"knative_notoken_mean_ms": 850, "ratio_mean": 5, "floor_median_ms": 195, "overhead_median_ms": 15, "wangell_warm_median_ms": 2, "lost": 2, "requests": 3} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	text := string(r.markdown())
	for _, want := range []string{"| Knative, no token", "| listening", "overhead"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not have %q:\n%s", want, text)
		}
	}
	// A run that left sides out.
	if err := knativeReport(KnativeRaw{SideKnative: raw[SideKnative]}).Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestImageVersion(t *testing.T) {
	for reference, want := range map[string]string{
		"registry.cluster.local:5000/knative/queue:v0.48.0@sha256:00": "v0.48.0",
		"registry.cluster.local:5000/knative/queue":                   "registry.cluster.local:5000/knative/queue",
		"a/b:1": "1",
	} {
		if got := imageVersion(reference); got != want {
			t.Errorf("%s: %s, want %s", reference, got, want)
		}
	}
}

func TestKnativeConfigDefaults(t *testing.T) {
	if _, err := (KnativeConfig{}).withDefaults(); err == nil {
		t.Error("no cluster was accepted")
	}
	if _, err := (KnativeConfig{Cluster: "x", Sides: []string{"traefik"}}).withDefaults(); err == nil || !strings.Contains(err.Error(), "traefik") {
		t.Errorf("an unknown side: %v", err)
	}
	c, err := (KnativeConfig{Cluster: "x", Quick: true}).withDefaults()
	if err != nil || c.Requests != 3 || len(c.Sides) != 4 {
		t.Errorf("%+v, %v", c, err)
	}
}
