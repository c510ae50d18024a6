// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime/kube"
	"wangell.loutres.me/internal/status"
)

// played is a fake controller with one service.
type played struct {
	controllerAPI
	status   status.Status
	scaled   int
	recalled *v1alpha1.WangellServiceStatus
}

func (p *played) StatusOf(v1alpha1.Key) (status.Status, bool) { return p.status, true }

func (p *played) Recall(_ v1alpha1.Key, st v1alpha1.WangellServiceStatus) { p.recalled = &st }

func (p *played) Scale(_ v1alpha1.Key, n int, _ string) error { p.scaled = n; return nil }

// The controller of the next leader learns what only the status has, also if that does not change.
func TestControllerLearnsWhatTheStatusHas(t *testing.T) {
	const key = v1alpha1.Key("default/shop")
	p := &played{}
	r := newReconciler(nil, nil, nil, nil)
	r.controllerAPI, r.now = p, func() time.Time { return time.Unix(1000, 0) }
	s := &v1alpha1.WangellService{}
	s.Status.LatestRequest = &metav1.Time{Time: time.Unix(900, 0)}
	s.Status.LastWake = &v1alpha1.LastWake{Start: metav1.NewTime(time.Unix(890, 0)), Result: "warm"}
	out := outcome{addr: netip.MustParseAddr("10.46.100.1"), revisions: "there is no WangellService v2"}
	s.Status = statusOf(s, out, r.observe(key), kube.Trouble{}, r.now())
	if _, err := r.writeStatus(t.Context(), key, s, out); err != nil || p.recalled == nil {
		t.Fatalf("%v, recalled %v", err, p.recalled)
	}
	ready := apimeta.FindStatusCondition(p.recalled.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Reason != "RevisionMissing" || ready.Message != out.revisions ||
		p.recalled.LatestRequest.Unix() != 900 || p.recalled.LastWake.Start.Unix() != 890 {
		t.Errorf("recalled %+v", p.recalled)
	}
}

// During a short wake nothing is written: the reconciler has no client. A number that others write into spec.replicas
// is obeyed all the same.
func TestNothingIsWrittenDuringAWake(t *testing.T) {
	const key = v1alpha1.Key("default/app")
	now := time.Unix(1000, 0)
	p := &played{status: status.Status{Desired: 1,
		LastWake: &lifecycle.Waterfall{Start: now.Add(-500 * time.Millisecond), Result: lifecycle.ResultRunning}}}
	p.status.Service.Status.State = lifecycle.Waking.String()
	r := newReconciler(nil, nil, nil, nil)
	r.controllerAPI, r.now = p, func() time.Time { return now }
	zero := int32(0)
	s := &v1alpha1.WangellService{}
	s.Spec.Replicas, s.Status.ObservedGeneration = &zero, 1
	out := outcome{addr: netip.MustParseAddr("10.46.100.1"), maxReplicas: 10}
	if _, err := r.syncReplicas(t.Context(), key, s, out); err != nil {
		t.Error(err)
	}
	if again, err := r.writeStatus(t.Context(), key, s, out); err != nil || again != wakePatience-500*time.Millisecond {
		t.Errorf("again in %s, %v", again, err)
	}
	three := int32(3)
	s.Spec.Replicas = &three
	if _, err := r.syncReplicas(t.Context(), key, s, out); err != nil || p.scaled != 3 {
		t.Errorf("%v, scaled to %d", err, p.scaled)
	}

	for name, change := range map[string]func(){
		"a wake that is over":   func() { p.status.LastWake.Result = lifecycle.ResultWarm },
		"one that failed":       func() { p.status.LastWake.Result = lifecycle.ResultFailed },
		"one that lasts":        func() { p.status.LastWake.Start = now.Add(-wakePatience) },
		"one with trouble":      func() { r.trouble[key] = kube.Trouble{Reason: "no node takes it"} },
		"a service never woken": func() { p.status.LastWake = nil },
	} {
		was, copied := p.status.LastWake, *p.status.LastWake
		p.status.LastWake = &copied
		clear(r.trouble)
		change()
		if wait := r.observe(key).quiet(now); wait != 0 {
			t.Errorf("%s is not written for %s", name, wait)
		}
		p.status.LastWake = was
	}
}

// While many services are being woken, a wake that lasts is written later: the writes would slow all of them down.
func TestLessIsWrittenWhileManyServicesWake(t *testing.T) {
	now := time.Unix(1000, 0)
	wake := &lifecycle.Waterfall{Start: now.Add(-wakePatience), Result: lifecycle.ResultRunning}
	p := &played{status: status.Status{Desired: 1, LastWake: wake}}
	r := newReconciler(nil, nil, nil, nil)
	r.controllerAPI, r.now = p, func() time.Time { return now }
	key := func(i int) v1alpha1.Key { return v1alpha1.Key("default/app-" + strconv.Itoa(i)) }
	for i := range crowdedWakes {
		want := time.Duration(0)
		if i == crowdedWakes-1 {
			want = crowdedPatience - wakePatience
		}
		if wait := r.observe(key(i)).quiet(now); wait != want {
			t.Errorf("wake %d is written after another %v, want %v", i+1, wait, want)
		}
	}
	wake.Result = lifecycle.ResultWarm
	r.observe(key(1))
	wake.Result = lifecycle.ResultRunning
	if wait := r.observe(key(0)).quiet(now); wait != 0 {
		t.Errorf("one of them is over: another is written after %v", wait)
	}
}

// The status is written once for a new number of pods: after the spec that has it, whose generation it observes.
func TestStatusAwaitsTheNumberThatWasWritten(t *testing.T) {
	const key = v1alpha1.Key("default/app")
	p := &played{status: status.Status{Desired: 1}}
	p.status.Service.Status.State = lifecycle.Warm.String()
	s := &v1alpha1.WangellService{}
	s.Namespace, s.Name, s.UID, s.Generation = "default", "app", "a", 1
	s.Spec.Replicas, s.Status.ObservedGeneration = new(int32(0)), 1
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var writes []string
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(s).WithStatusSubresource(s).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
				writes = append(writes, "spec")
				o.SetGeneration(2) // as the API server does
				return nil
			},
			SubResourcePatch: func(_ context.Context, _ client.Client, _ string, o client.Object, _ client.Patch,
				_ ...client.SubResourcePatchOption) error {
				status := o.(*v1alpha1.WangellService).Status
				writes = append(writes, fmt.Sprintf("status %s of generation %d", status.State, status.ObservedGeneration))
				return nil
			},
		}).Build()
	r := newReconciler(c, nil, nil, nil)
	r.controllerAPI, r.now = p, func() time.Time { return time.Unix(1000, 0) }
	out := outcome{addr: netip.MustParseAddr("10.46.100.1"), maxReplicas: 10}
	s.Status = statusOf(s, out, observed{}, kube.Trouble{}, r.now())
	reconcile := func(s *v1alpha1.WangellService) {
		t.Helper()
		if _, err := r.syncReplicas(t.Context(), key, s, out); err != nil {
			t.Fatal(err)
		}
		if _, err := r.writeStatus(t.Context(), key, s, out); err != nil {
			t.Fatal(err)
		}
	}
	reconcile(s)
	reconcile(s) // the cache is late
	next := s.DeepCopy()
	next.Generation, next.Spec.Replicas = 2, new(int32(1))
	reconcile(next)
	if want := []string{"spec", "status Warm of generation 2"}; !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}

	// Another service of this name begins at generation 1.
	other := s.DeepCopy()
	other.UID, other.Status.State, other.Generation = "b", "", 1
	r.now = func() time.Time { return time.Unix(2000, 0) }
	if _, err := r.writeStatus(t.Context(), key, other, out); err != nil || len(writes) != 3 {
		t.Errorf("%v, wrote %q", err, writes)
	}
}

// A new leader neither writes nor obeys a number of pods before the daemons have reported the pods that it inherits: a
// service that is awake would seem to sleep. The reconciler has no client, so that any write would panic.
func TestNewLeaderWaitsForTheReportsOfItsPods(t *testing.T) {
	const key = v1alpha1.Key("default/app")
	p := &played{status: status.Status{Unreported: true}, scaled: none}
	p.status.Service.Status.State = lifecycle.Cold.String()
	r := newReconciler(nil, nil, nil, nil)
	r.controllerAPI, r.now = p, func() time.Time { return time.Unix(1000, 0) }
	three := int32(3)
	s := &v1alpha1.WangellService{}
	s.Spec.Replicas, s.Status.ObservedGeneration, s.Status.DesiredReplicas = &three, 1, 3
	out := outcome{addr: netip.MustParseAddr("10.46.100.1"), maxReplicas: 10}
	for _, desired := range []int{0, 1, 2} { // they are reported one after the other
		p.status.Desired = desired
		if again, err := r.syncReplicas(t.Context(), key, s, out); err != nil || again != reportPause {
			t.Errorf("%d of 3 pods known: again in %s, %v", desired, again, err)
		}
		if again, err := r.writeStatus(t.Context(), key, s, out); err != nil || again != reportPause {
			t.Errorf("%d of 3 pods known: the status is written again in %s, %v", desired, again, err)
		}
	}
	p.status.Desired, p.status.Unreported = 3, false
	if again, err := r.syncReplicas(t.Context(), key, s, out); err != nil || again != 0 || p.scaled != none {
		t.Errorf("all known: again in %s, scaled to %d, %v", again, p.scaled, err)
	}

	// A service whose pods went while nobody led really sleeps, and that is written.
	delete(r.known, key)
	p.status.Desired = 0
	defer func() {
		if recover() == nil {
			t.Error("the number of a service that sleeps was not written")
		}
	}()
	_, _ = r.syncReplicas(t.Context(), key, s, out)
}
