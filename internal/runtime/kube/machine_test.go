// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
)

// restingDeployment returns a Deployment at rest.
func restingDeployment() *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app", UID: "d", ResourceVersion: "1", Generation: 1},
		Spec:       appsv1.DeploymentSpec{Paused: true, Replicas: new(int32(0)), Selector: &metav1.LabelSelector{}},
	}
	d.Status.ObservedGeneration = 1
	return d
}

// setOf returns a ReplicaSet of a Deployment.
func setOf(uid string, replicas int32, revision string) *appsv1.ReplicaSet {
	s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid),
		ResourceVersion: "1"}}
	s.Spec.Replicas = &replicas
	if revision != "" {
		s.Annotations = map[string]string{revisionAnnotation: revision}
	}
	return s
}

// describe returns an action as text.
func describe(a action, now time.Time) string {
	switch a := a.(type) {
	case wait:
		if a.until.IsZero() {
			return "wait"
		}
		return fmt.Sprint("wait ", a.until.Sub(now))
	case scale:
		return fmt.Sprint("scale ", a.replicas)
	case setPaused:
		return strings.TrimSpace(fmt.Sprint("pause ", a.paused, " ", a.version))
	case createPods:
		return fmt.Sprint("create pods ", a.n)
	case deletePods:
		return fmt.Sprint("delete pods ", strings.Join(a.uids, " "))
	case createSet:
		return fmt.Sprint("create set of ", *a.set.Spec.Replicas)
	case deleteSet:
		return "delete set " + a.set.Name
	case giveUp:
		return "give up"
	}
	return fmt.Sprintf("%T", a)
}

// Each case is a service in some state; what is observed; and the one action that follows.
func TestEachObservationLeadsToOneAction(t *testing.T) {
	now := time.Unix(1e9, 0)
	paused := func(change func(*appsv1.Deployment)) *appsv1.Deployment {
		d := restingDeployment()
		change(d)
		return d
	}
	running := paused(func(d *appsv1.Deployment) { d.Spec.Paused = false })
	scaledTo := func(n int32, version string, seen bool) *appsv1.Deployment {
		return paused(func(d *appsv1.Deployment) {
			d.Spec.Replicas, d.ResourceVersion, d.Generation = &n, version, 2
			if seen {
				d.Status.ObservedGeneration = 2
			}
		})
	}
	two := func() *direct {
		return &direct{hash: "x", uids: map[string]bool{"a": true, "b": true}, from: restingDeployment(), first: now,
			last: now}
	}
	announced := func() *direct { dir := two(); dir.announced = true; return dir }
	later := now.Add(handOverDelay)
	for name, c := range map[string]struct {
		m    machine
		o    observation
		want string
	}{
		"at rest and nothing wanted": {machine{}, observation{deployment: restingDeployment()}, "wait"},
		"at rest and pods wanted": {machine{want: 3}, observation{deployment: restingDeployment()},
			"create pods 3"},
		"at rest, but not to create pods": {machine{want: 3, throughDeployment: true},
			observation{deployment: restingDeployment()}, "scale 3"},
		"the Deployment is not known": {machine{want: 3}, observation{}, "scale 3"},
		"its controller has not seen that": {machine{want: 1},
			observation{deployment: paused(func(d *appsv1.Deployment) { d.Generation = 2 })}, "scale 1"},
		"paused, with a ReplicaSet": {machine{want: 1},
			observation{deployment: restingDeployment(), sets: []*appsv1.ReplicaSet{setOf("s", 0, "1")}}, "scale 1"},
		"managed": {machine{want: 2, written: 1}, observation{deployment: running},
			"scale 2"},
		"a write was not confirmed": {machine{want: 1, written: unknown},
			observation{deployment: restingDeployment()}, "scale 1"},
		"a victim is not marked": {machine{want: 1, excess: 1, written: 2},
			observation{deployment: running}, "wait"},
		"paused, with pods": {machine{want: 1, written: 1},
			observation{deployment: restingDeployment()}, "pause false"},
		"paused, but not to create pods": {machine{throughDeployment: true},
			observation{deployment: restingDeployment()}, "pause false"},
		"direct pods": {machine{want: 2, written: 2, direct: two()}, observation{}, "wait 2s"},
		"direct pods in a wake": {machine{want: 2, written: 2, direct: two()}, observation{starting: true},
			"wait 10s"},
		"more direct pods": {machine{want: 5, written: 2, direct: two()}, observation{},
			"create pods 3"},
		"fewer direct pods": {machine{want: 1, written: 2, direct: two()}, observation{}, "scale 1"},
		"no direct pods": {machine{want: 0, written: 2, direct: two()}, observation{},
			"delete pods a b"},
		"no direct pods, which a set may select": {machine{want: 0, written: 2, direct: announced()}, observation{},
			"scale 0"},
		"more direct pods, which a set may select": {machine{want: 3, written: 2, direct: announced()}, observation{},
			"scale 3"},
		"hand-over is due": {machine{want: 2, written: 2, direct: two()}, observation{now: later},
			"scale 2"},
		"scaled, and not seen by its controller": {machine{stage: handObserving, target: 2, scaled: 7, direct: announced(),
			deadline: later},
			observation{deployment: scaledTo(2, "7", false)}, "wait 2s"},
		"scaled, and seen by its controller": {machine{stage: handObserving, target: 2, scaled: 7, direct: announced(),
			deadline: later},
			observation{deployment: scaledTo(2, "7", true)}, "create set of 2"},
		"scaled, and an older version is known": {machine{stage: handObserving, target: 2, scaled: 8, direct: announced(),
			deadline: later},
			observation{deployment: scaledTo(2, "7", true)}, "wait 2s"},
		"scaled, and never seen": {machine{stage: handObserving, target: 2, scaled: 7, direct: announced(), deadline: now},
			observation{}, "give up"},
		"a set that is not recognized": {machine{stage: recognizing, adopter: setOf("s", 2, ""), direct: announced(),
			deadline: later}, observation{sets: []*appsv1.ReplicaSet{setOf("s", 2, "")}}, "wait 2s"},
		"a set that is recognized": {machine{stage: recognizing, adopter: setOf("s", 2, ""), direct: announced(),
			deadline: later}, observation{sets: []*appsv1.ReplicaSet{setOf("s", 2, "1")}}, "pause false"},
		"a set that is recognized late": {machine{stage: recognizing, adopter: setOf("s", 2, ""), direct: announced(),
			deadline: now}, observation{deployment: restingDeployment()}, "wait 50s"},
		"a set that is never recognized": {machine{stage: recognizing, adopter: setOf("s", 2, ""), direct: announced(),
			deadline: now.Add(observeTimeout - recognizeTimeout)}, observation{deployment: restingDeployment()}, "pause false"},
		"a set of an older template": {machine{stage: recognizing, adopter: setOf("s", 2, ""), direct: announced(),
			deadline: now}, observation{deployment: paused(func(d *appsv1.Deployment) {
			d.Spec.Template.Labels = map[string]string{"spec": "new"}
		})}, "pause false"},
		"resumed, and not seen": {machine{stage: resumeObserving, deadline: later},
			observation{deployment: restingDeployment()}, "wait 2s"},
		"resumed, and seen": {machine{stage: resumeObserving, deadline: later},
			observation{deployment: running}, "wait"},
		"asleep, and not at rest": {machine{}, observation{deployment: running}, "pause true 1"},
		"asleep, and just empty":  {machine{}, observation{deployment: running, emptySince: now}, "wait 200ms"},
		"asleep, with a pod":      {machine{}, observation{deployment: running, pods: 1}, "wait"},
		"asleep, with a Start":    {machine{}, observation{deployment: running, starting: true}, "wait"},
		"asleep, with a ReplicaSet": {machine{},
			observation{deployment: restingDeployment(), sets: []*appsv1.ReplicaSet{setOf("s", 0, "1")}}, "delete set s"},
		"asleep, with a ReplicaSet with pods": {machine{},
			observation{deployment: restingDeployment(), sets: []*appsv1.ReplicaSet{setOf("s", 1, "1")}}, "give up"},
		"paused, and not seen by its controller": {machine{stage: restObserving, deadline: later},
			observation{deployment: paused(func(d *appsv1.Deployment) { d.Generation = 2 })}, "wait 2s"},
		"being deleted": {machine{}, observation{deployment: paused(func(d *appsv1.Deployment) {
			d.Spec.Paused,
				d.DeletionTimestamp = false, &metav1.Time{}
		})}, "wait"},
	} {
		c.m.uid = "d"
		if c.o.now.IsZero() {
			c.o.now = now
		}
		if got := describe(c.m.next(c.o), now); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// What a sequence does depends on the result of each of its requests.
func TestSequenceEndsWithAnError(t *testing.T) {
	now := time.Unix(1e9, 0)
	o := observation{now: now, deployment: restingDeployment()}
	m := machine{uid: "d", want: 2}
	m.next(o)
	m.done(result{created: []string{"a"}, err: errors.New("quota")}, now)
	if m.stage != idle || m.written != 1 || !m.pending() || !maps.Equal(m.direct.uids, map[string]bool{"a": true}) {
		t.Errorf("one of two pods was created: %+v", m)
	}
	if got := describe(m.next(o), now); got != "create pods 1" {
		t.Errorf("then %s", got)
	}
	m = machine{uid: "d", want: 1}
	m.next(o)
	m.done(result{err: errors.New("no")}, now)
	if m.direct != nil || m.written != 0 {
		t.Errorf("no pod was created: %+v", m)
	}
	m = machine{uid: "d", want: 1, written: 2}
	m.next(o)
	m.done(result{err: errors.New("no")}, now)
	if m.written != unknown || m.sending {
		t.Errorf("a write failed: %+v", m)
	}
}

// A digest that the operator writes into the template while the pods of a wake exist replaces none of them; any other
// change of the template does.
func TestHandOverKeepsPodsWhoseTagBecameADigest(t *testing.T) {
	now := time.Unix(1e9, 0)
	template := func(image, hash string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelSpecHash: hash}},
			Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "first", Image: "a/first:1"}},
				Containers:     []corev1.Container{{Name: "app", Image: image}},
			},
		}
	}
	digest := "docker.io/a/b@sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		now  corev1.PodTemplateSpec
		kept bool
	}{
		"the same":             {template("a/b:1", "h"), true},
		"its digest":           {template(digest, "h"), true},
		"another spec":         {template("a/b:2", "h2"), false},
		"another repository":   {template("a/c:1", "h"), false},
		"a digest and a label": {template(digest, "h2"), false},
	} {
		t.Run(name, func(t *testing.T) {
			from, d := restingDeployment(), restingDeployment()
			from.Spec.Template, d.Spec.Template = template("a/b:1", "h"), c.now
			d.ResourceVersion, d.Spec.Replicas = "7", new(int32(1))
			m := machine{stage: handObserving, target: 1, scaled: 7, deadline: now.Add(time.Minute),
				direct: &direct{hash: "x", uids: map[string]bool{"a": true}, from: from, announced: true}}
			a, ok := m.next(observation{now: now, deployment: d}).(createSet)
			if !ok {
				t.Fatalf("got %T", a)
			}
			got := a.set.Spec.Template
			delete(got.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
			if kept := equality.Semantic.DeepEqual(got, d.Spec.Template); kept != c.kept {
				t.Errorf("the Deployment keeps the pods: %t, want %t; the ReplicaSet's template is %+v", kept, c.kept, got)
			}
			if !c.kept && !equality.Semantic.DeepEqual(got, from.Spec.Template) {
				t.Errorf("the ReplicaSet's template is %+v, not the pods'", got)
			}
		})
	}
}
