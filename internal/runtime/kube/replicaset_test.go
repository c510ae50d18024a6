package kube

import (
	"errors"
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// settled makes a Deployment one that its controller has brought to revision 2, of a spec with the hash h.
func settled(d *appsv1.Deployment) {
	surge := intstr.FromInt32(1)
	d.Annotations = map[string]string{revisionAnnotation: "2"}
	d.Generation, d.Status.ObservedGeneration = 7, 7
	d.Spec.Template.Labels = map[string]string{v1alpha1.LabelSpecHash: "h"}
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge},
	}
}

// setOf is a ReplicaSet of app's Deployment.
func setOf(name, revision, hash string, replicas int32) *appsv1.ReplicaSet {
	yes := true
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Labels:          map[string]string{v1alpha1.LabelService: "app", v1alpha1.LabelSpecHash: hash, appsv1.DefaultDeploymentUniqueLabelKey: name},
			Annotations:     map[string]string{revisionAnnotation: revision, desiredAnnotation: "0", maxAnnotation: "1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "app", UID: "d", Controller: &yes}},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas},
	}
}

func TestCurrentSet(t *testing.T) {
	current := func(replicas int32) *appsv1.ReplicaSet { return setOf("new", "2", "h", replicas) }
	old := func(replicas int32) *appsv1.ReplicaSet { return setOf("old", "1", "g", replicas) }
	foreign := current(0)
	foreign.OwnerReferences[0].UID = "another"
	going := current(0)
	going.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		sets     []*appsv1.ReplicaSet
		change   func(*appsv1.Deployment)
		replicas int32
		want     bool
	}{
		"a wake":                                {[]*appsv1.ReplicaSet{old(0), current(0)}, nil, 1, true},
		"one more":                              {[]*appsv1.ReplicaSet{current(2), old(0)}, nil, 3, true},
		"as many as before":                     {[]*appsv1.ReplicaSet{current(1)}, nil, 1, false},
		"fewer":                                 {[]*appsv1.ReplicaSet{current(2)}, nil, 1, false},
		"a rollout":                             {[]*appsv1.ReplicaSet{current(1), old(1)}, nil, 3, false},
		"a rollout that has just begun":         {[]*appsv1.ReplicaSet{current(0), old(1)}, nil, 2, false},
		"no ReplicaSet":                         {nil, nil, 1, false},
		"one of an older template":              {[]*appsv1.ReplicaSet{old(0)}, nil, 1, false},
		"of an older spec, same revision":       {[]*appsv1.ReplicaSet{setOf("old", "2", "g", 0)}, nil, 1, false},
		"of an older revision, same spec":       {[]*appsv1.ReplicaSet{setOf("old", "1", "h", 0)}, nil, 1, false},
		"somebody else's":                       {[]*appsv1.ReplicaSet{foreign}, nil, 1, false},
		"one that is being deleted":             {[]*appsv1.ReplicaSet{going}, nil, 1, false},
		"a change that nobody has seen":         {[]*appsv1.ReplicaSet{current(0)}, func(d *appsv1.Deployment) { d.Generation++ }, 1, false},
		"a Deployment without revision":         {[]*appsv1.ReplicaSet{setOf("x", "", "h", 0)}, func(d *appsv1.Deployment) { d.Annotations = nil }, 1, false},
		"a Deployment that is held":             {[]*appsv1.ReplicaSet{current(0)}, func(d *appsv1.Deployment) { d.Spec.Paused = true }, 1, false},
		"a Deployment that is being deleted":    {[]*appsv1.ReplicaSet{current(0)}, func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{} }, 1, false},
		"two that could be it":                  {[]*appsv1.ReplicaSet{current(0), setOf("twin", "2", "h", 0)}, nil, 1, false},
		"a Deployment whose spec went back":     {[]*appsv1.ReplicaSet{current(0)}, func(d *appsv1.Deployment) { d.Spec.Template.Labels = nil }, 1, false},
		"somebody else's with pods beside ours": {[]*appsv1.ReplicaSet{func() *appsv1.ReplicaSet { f := old(3); f.OwnerReferences = nil; return f }(), current(0)}, nil, 1, true},
	} {
		d := (&world{}).deployment(0)
		settled(d)
		if c.change != nil {
			c.change(d)
		}
		got := currentSet(d, c.sets, c.replicas)
		if (got != nil) != c.want || got != nil && got.Name != "new" {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// set reads a ReplicaSet from the API.
func (w *world) set(name string) *appsv1.ReplicaSet {
	w.t.Helper()
	s, err := w.client.AppsV1().ReplicaSets("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) patches() (n int) {
	for _, a := range w.client.Actions() {
		if a.Matches("patch", "replicasets") {
			n++
		}
	}
	return n
}

// patched waits until ReplicaSets were patched so often: that is after the Deployment was written.
func (w *world) patched(times int) {
	w.t.Helper()
	w.until("a ReplicaSet is patched", func() bool { return w.patches() == times })
}

// A wake scales the ReplicaSet, too, with what the Deployment controller writes beside the number; the end of the pod
// does not.
func TestReplicaSetIsScaled(t *testing.T) {
	w := newWorldWith(t, 0, settled, setOf("old", "1", "g", 0), setOf("new", "2", "h", 0))
	w.client.PrependReactor("patch", "replicasets", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		if got := w.writes(); got != "[1]" {
			t.Errorf("the Deployment had %s when the ReplicaSet was scaled", got)
		}
		return false, nil, nil
	})
	w.up("app-1")
	w.patched(1)
	want := map[string]string{revisionAnnotation: "2", desiredAnnotation: "1", maxAnnotation: "2"}
	if s := w.set("new"); *s.Spec.Replicas != 1 || !maps.Equal(s.Annotations, want) {
		t.Errorf("it has %d replicas and %v", *s.Spec.Replicas, s.Annotations)
	}
	if s := w.set("old"); *s.Spec.Replicas != 0 {
		t.Error("the old one was scaled")
	}
	w.seen("app-1", gone)
	w.r.mu.Lock()
	w.r.services["default/app"].want = 0
	w.r.mu.Unlock()
	w.until("the ReplicaSet is known to have one", func() bool {
		o, _, _ := w.r.sets.GetStore().GetByKey("default/new")
		return *o.(*appsv1.ReplicaSet).Spec.Replicas == 1
	})
	if err := w.r.write(t.Context(), w.r.services["default/app"]); err != nil || w.writes() != "[1 0]" {
		t.Errorf("%v, wrote %s", err, w.writes())
	}
	if w.patches() != 1 {
		t.Error("the ReplicaSet was scaled in")
	}
}

// What the Deployment controller has done meanwhile is not done over, and that it was quicker is no failure.
func TestReplicaSetWasScaled(t *testing.T) {
	w := newWorldWith(t, 0, settled, setOf("new", "2", "h", 0))
	w.client.PrependReactor("update", "deployments", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		s := setOf("new", "2", "h", 5)
		return false, nil, w.client.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("replicasets"), s, "default")
	})
	w.up("app-1")
	w.patched(1)
	if s := w.set("new"); *s.Spec.Replicas != 5 || s.Annotations[desiredAnnotation] != "0" {
		t.Errorf("it has %d replicas and %v", *s.Spec.Replicas, s.Annotations)
	}
}

// Without the ReplicaSet's number a wake goes on as it does anyway; without the Deployment's, there is no other.
func TestReplicaSetRefused(t *testing.T) {
	w := newWorldWith(t, 0, settled, setOf("new", "2", "h", 0))
	w.client.PrependReactor("patch", "replicasets", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return true, nil, errors.New("no")
	})
	w.up("app-1")
	w.patched(1)

	w = newWorldWith(t, 0, settled, setOf("new", "2", "h", 0))
	w.fail = errors.New("no")
	if _, err := w.r.Start(t.Context(), w.service(), runtime.StartHooks{}); err == nil || w.patches() != 0 {
		t.Errorf("%v; ReplicaSets were patched %d times", err, w.patches())
	}
}

// In a rollout, and with a Deployment that is older here than our own last write, it is left alone.
func TestReplicaSetIsLeft(t *testing.T) {
	w := newWorldWith(t, 1, settled, setOf("old", "1", "g", 1), setOf("new", "2", "h", 0))
	w.seen("app-1", network, created, started)
	get(w, w.r.Appeared())
	w.up("app-2")
	if w.patches() != 0 || w.writes() != "[2]" {
		t.Errorf("patched %d times, wrote %s", w.patches(), w.writes())
	}

	w = newWorldWith(t, 0, settled, setOf("new", "2", "h", 0))
	s := w.r.of("default/app", "default", "app")
	w.r.mu.Lock()
	s.version = 1000
	_, set := w.r.findSet(s, 1)
	w.r.mu.Unlock()
	if set != nil {
		t.Error("what is known of the Deployment is old")
	}
}
