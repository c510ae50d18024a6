// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// labPod is a pod as the API returns it.
func labPod(name string, labels map[string]string, ready, ending bool) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if ending {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return p
}

func TestColdRequestNeedsNoPodAndNoDisturbance(t *testing.T) {
	wangell := map[string]string{v1alpha1.LabelService: wangellName}
	knative := map[string]string{labelKnative: knativeName(true)}
	notoken := map[string]string{labelKnative: knativeName(false)}
	floor := map[string]string{labelSide: SideFloor}
	for _, test := range []struct {
		name string
		pods []corev1.Pod
		side string
		want string // part of the error; empty for none
	}{
		{"no pod", nil, SideWangell, ""},
		{"a pod of the side", []corev1.Pod{labPod("a", wangell, true, false)}, SideWangell, "not be cold: pod a"},
		{"a terminating pod of the side", []corev1.Pod{labPod("a", knative, true, true)}, SideKnative, "terminating"},
		{"a starting pod of the side", []corev1.Pod{labPod("a", floor, false, false)}, SideFloor, "not be cold"},
		{"an idle pod of the other Knative", []corev1.Pod{labPod("a", notoken, true, false)}, SideKnative, ""},
		{"another side's pod is terminating", []corev1.Pod{labPod("a", knative, true, true)}, SideWangell, "be disturbed"},
		{"another side's pod starts", []corev1.Pod{labPod("a", knative, false, false)}, SideKnativeNoToken, "be disturbed"},
		{"an unknown pod starts", []corev1.Pod{labPod("a", nil, false, false)}, SideFloor, "be disturbed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkCold(test.pods, test.side)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestKnativeSidesChangePlacesEachRound(t *testing.T) {
	sides := []side{&wangellSide{}, &floorSide{}, newKnativeSide(nil, "", true), newKnativeSide(nil, "", false)}
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
	if strings.Join(names(sides), " ") != strings.Join(AllSides, " ") {
		t.Error("the sides themselves changed")
	}
}

func TestFloorPodBelongsToNoController(t *testing.T) {
	no := false
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelService: "x"}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	p := floorPod(template, "ns", "floor-1")
	if sideOf(p) != SideFloor || p.Labels[v1alpha1.LabelService] != "" {
		t.Errorf("labels %v: another controller selects it", p.Labels)
	}
	if p.Spec.AutomountServiceAccountToken == nil || p.Spec.Containers[0].Image != "i" {
		t.Errorf("it is not the template's pod: %+v", p.Spec)
	}
	p.Spec.Containers[0].Image = "other"
	if template.Spec.Containers[0].Image != "i" {
		t.Error("the template changed with the pod")
	}
}

func TestReportComparesSides(t *testing.T) {
	first := map[string]float64{"syn-seen": 0, "sandbox": 100, "started": 150, "listening": 190}
	second := map[string]float64{"syn-seen": 0, "sandbox": 120, "started": 160, "listening": 200}
	floor := map[string]float64{"sandbox": 100, "created": 110, "started": 150}
	raw := Samples{
		SideWangell: {{Done: 200, FirstByte: 199, Phases: first, Warm: []float64{1, 3}},
			{Done: 220, FirstByte: 219, Phases: second, Warm: []float64{2}}},
		SideFloor:          {{Done: 190, FirstByte: 190, Phases: floor}, {Done: 200, FirstByte: 199}},
		SideKnative:        {{Done: 1000}, {Done: 1100}, {Error: "refused", Done: 3}},
		SideKnativeNoToken: {{Done: 800, WarmErrors: []string{"reset"}}, {Done: 900}},
	}
	r := newReport(raw)
	for key, want := range map[string]float64{"wangell_mean_ms": 210, "wangell_median_ms": 210,
		"wangell_stddev_ms": math.Sqrt(200), "knative_mean_ms": 1050, "knative_notoken_mean_ms": 850, "ratio_mean": 5,
		"floor_median_ms": 195, "overhead_median_ms": 15, "wangell_warm_median_ms": 2, "lost": 2, "requests": 3} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	text := string(r.Markdown())
	for _, want := range []string{"| Knative, no token", "| listening", "overhead"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not have %q:\n%s", want, text)
		}
	}
	// A run that left sides out.
	if err := newReport(Samples{SideKnative: raw[SideKnative]}).Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestParamsAreChecked(t *testing.T) {
	parse := func(args ...string) (Params, error) {
		var p Params
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		p.Flags(f)
		if err := f.Parse(args); err != nil {
			return p, err
		}
		return p.withDefaults(), p.Check(f)
	}
	for _, args := range [][]string{{}, {"--cluster", "x", "--sides", "traefik"}, {"--cluster", "x", "--requests", "0"}} {
		if _, err := parse(args...); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	p, err := parse("--cluster", "x", "--quick")
	if err != nil || p.Requests != 3 || len(p.Sides) != 4 {
		t.Errorf("%+v, %v", p, err)
	}
}
