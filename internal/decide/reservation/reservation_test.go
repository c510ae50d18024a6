// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

var (
	all     = Set{CPU: true, Memory: true}
	nothing = Set{}
)

// list makes a list of resources from text such as "cpu=500m memory=64Mi".
func list(text string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for field := range strings.FieldsSeq(text) {
		name, q, _ := strings.Cut(field, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

// newPod returns a Burstable pod with one container for each list of requests.
func newPod(of ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	p.Status.QOSClass = corev1.PodQOSBurstable
	for i, text := range of {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{Requests: list(text)},
		})
	}
	return p
}

// requestsOf describes the requests of a pod's containers.
func requestsOf(p *corev1.Pod) string {
	var out []string
	for c := range resizable(p) {
		text := c.Name
		for _, name := range append(resources, "ephemeral-storage") {
			if q, ok := c.Resources.Requests[name]; ok {
				text += " " + q.String()
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// settle takes steps until none is left, and returns the pod after that. Each is a patch as the API server applies it.
func settle(t *testing.T, p *corev1.Pod, give Set) (after *corev1.Pod, steps int) {
	t.Helper()
	for ; steps < 10; steps++ {
		step, err := Next(p, give)
		if err != nil {
			t.Fatal(err)
		}
		if step.Patch == nil {
			return p, steps
		}
		before, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		text, err := strategicpatch.StrategicMergePatch(before, step.Patch, corev1.Pod{})
		if err != nil {
			t.Fatalf("%s: %v", step.Patch, err)
		}
		next := &corev1.Pod{}
		if err := json.Unmarshal(text, next); err != nil {
			t.Fatal(err)
		}
		if changed := requestsOf(next) != requestsOf(p); changed != step.Resize || next.UID != p.UID {
			t.Fatalf("%s: resize %t, requests %s, then %s", step.Patch, step.Resize, requestsOf(p), requestsOf(next))
		}
		p = next
	}
	t.Fatal("there is no end of steps")
	return nil, 0
}

func TestFrozenPodGivesItsRequestsBackAndHasThemAgain(t *testing.T) {
	p := newPod("cpu=500m memory=64Mi ephemeral-storage=1Gi", "cpu=1m memory=4Mi", "memory=1Gi")
	before := requestsOf(p)
	frozen, steps := settle(t, p, all)
	if got := requestsOf(frozen); steps != 2 || got != "a 1m 8Mi 1Gi, b 1m 4Mi, c 8Mi" || !Noted(frozen) {
		t.Fatalf("%d steps, %s, %v", steps, got, frozen.Annotations)
	}
	if cpu, memory := Given(frozen); cpu < 0.498 || cpu > 0.5 || memory != 64<<20+1<<30-16<<20 {
		t.Errorf("given back %f cores, %f bytes", cpu, memory)
	}
	thawed, steps := settle(t, frozen, nothing)
	if got := requestsOf(thawed); steps != 2 || got != before || Noted(thawed) {
		t.Errorf("%d steps, %s, %v", steps, got, thawed.Annotations)
	}
	if cpu, memory := Given(thawed); cpu != 0 || memory != 0 {
		t.Errorf("given back %f cores, %f bytes", cpu, memory)
	}
}

// A thaw comes at any moment: after each step, the pod has all its requests again, and no note stays.
func TestThawIsPossibleAfterEachStep(t *testing.T) {
	p := newPod("cpu=2 memory=64Mi")
	for steps := 0; ; steps++ {
		step, err := Next(p, all)
		if err != nil {
			t.Fatal(err)
		}
		if thawed, _ := settle(t, p, nothing); requestsOf(thawed) != "a 2 64Mi" || Noted(thawed) {
			t.Errorf("after %d steps: %s, %v", steps, requestsOf(thawed), thawed.Annotations)
		}
		if step.Patch == nil {
			return
		}
		if !step.Lowers {
			t.Errorf("step %d does not count as one that gives something back", steps)
		}
		before, _ := json.Marshal(p)
		text, err := strategicpatch.StrategicMergePatch(before, step.Patch, corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		p = &corev1.Pod{}
		if err := json.Unmarshal(text, p); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPodsThatCannotBeResizedKeepTheirRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string // its requests while it is frozen
	}{
		"Guaranteed":        {func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed }, "a 1 64Mi"},
		"BestEffort":        {func(p *corev1.Pod) { *p = *newPod(""); p.Status.QOSClass = corev1.PodQOSBestEffort }, "a"},
		"class not known":   {func(p *corev1.Pod) { p.Status.QOSClass = "" }, "a 1 64Mi"},
		"small already":     {func(p *corev1.Pod) { *p = *newPod("cpu=1m memory=8Mi") }, "a 1m 8Mi"},
		"no memory":         {func(p *corev1.Pod) { *p = *newPod("cpu=2") }, "a 1m"},
		"it is being ended": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, "a 1 64Mi"},
		"the pod has resources of its own": {func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu=2")}
		}, "a 1 64Mi"},
		"memory restarts the container": {func(p *corev1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
			}
		}, "a 1m 64Mi"},
		"a sidecar": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{
				{Name: "s", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: list("cpu=3")}},
				{Name: "i", Resources: corev1.ResourceRequirements{Requests: list("cpu=4")}},
			}
		}, "a 1m 8Mi, s 1m"},
	} {
		p := newPod("cpu=1 memory=64Mi")
		c.change(p)
		before := requestsOf(p)
		frozen, steps := settle(t, p, all)
		if got := requestsOf(frozen); got != c.want || (steps == 0) != (got == before) {
			t.Errorf("%s: %d steps, %s, want %s", name, steps, got, c.want)
		}
		if got, _ := settle(t, frozen, nothing); requestsOf(got) != before {
			t.Errorf("%s: thawed %s, want %s", name, requestsOf(got), before)
		}
	}
}

// A kubelet with swap does not change requests of memory: those go back, and those of CPU stay given.
func TestResourceThatIsRefusedIsTakenBackAlone(t *testing.T) {
	frozen, _ := settle(t, newPod("cpu=1 memory=64Mi"), all)
	part, _ := settle(t, frozen, all.Without(Set{Memory: true}))
	if got := requestsOf(part); got != "a 1m 64Mi" {
		t.Errorf("without memory: %s", got)
	}
	if thawed, _ := settle(t, part, nothing); requestsOf(thawed) != "a 1 64Mi" || Noted(thawed) {
		t.Errorf("thawed: %s", requestsOf(thawed))
	}
}

// A vertical autoscaler may change requests at any time.
func TestRequestsThatOthersHaveChangedStay(t *testing.T) {
	frozen, _ := settle(t, newPod("cpu=1 memory=64Mi"), all)
	frozen.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
	if still, steps := settle(t, frozen, all); steps != 0 || requestsOf(still) != "a 3 8Mi" {
		t.Errorf("%d steps, %s", steps, requestsOf(still))
	}
	thawed, _ := settle(t, frozen, nothing)
	if requestsOf(thawed) != "a 3 64Mi" || Noted(thawed) {
		t.Errorf("thawed: %s", requestsOf(thawed))
	}
	if again, _ := settle(t, thawed, all); requestsOf(again) != "a 1m 8Mi" {
		t.Errorf("frozen again: %s", requestsOf(again))
	}
}

func TestNoteThatCannotBeReadChangesNothing(t *testing.T) {
	for _, text := range []string{"{", `{"a":{"cpu":"x"}}`, `{"a":{"cpu":"1m"}}`, `{"a":{"pods":"3"}}`, `[]`} {
		p := newPod("cpu=1 memory=64Mi")
		p.Annotations = map[string]string{Annotation: text}
		for _, give := range []Set{all, nothing} {
			if step, err := Next(p, give); err == nil || step.Patch != nil || !strings.Contains(err.Error(), "pod p") {
				t.Errorf("%s: %s, %v", text, step.Patch, err)
			}
		}
	}
}

func TestPendingIsWhatKubeletSays(t *testing.T) {
	p := newPod("cpu=1")
	p.Generation = 4
	pending := corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonDeferred, Message: "no room", ObservedGeneration: 4}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, pending}
	if why, forGood := Pending(p); why != "no room" || forGood {
		t.Errorf("%q, %t", why, forGood)
	}
	p.Status.Conditions[1].Reason = corev1.PodReasonInfeasible
	if why, forGood := Pending(p); why != "no room" || !forGood {
		t.Errorf("infeasible: %q, %t", why, forGood)
	}
	p.Generation++ // it is about requests of before
	if why, _ := Pending(p); why != "" {
		t.Errorf("of before: %q", why)
	}
}
