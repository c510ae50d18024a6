// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
)

// simulation is a machine with a simulated API server, Deployment controller and ReplicaSet controller. Each of the
// three sees the objects of the others late, and any of them may act next. The controllers do what
// pkg/controller/deployment and pkg/controller/replicaset of Kubernetes do with a Deployment that has one template.
type simulation struct {
	*testing.T
	rng     *rand.Rand
	now     time.Time
	version int
	log     []string

	// What the API server has. sets are by name; pods by UID.
	deployment *appsv1.Deployment
	sets       map[string]*appsv1.ReplicaSet
	pods       map[string]simulatedPod
	nextPod    int

	// What the controllers have seen.
	seenByDC, setsByRSC map[string]*appsv1.ReplicaSet
	deploymentByDC      *appsv1.Deployment

	m         machine
	service   service // what the machine's cache has
	knownPods map[string]simulatedPod
	lost      bool // a pod went by other hands, and is to be replaced
	fewest    int  // the least and the most pods that were wanted since all came to rest
	most      int
	mayFail   bool
	asked     int32   // the number that was asked for last
	weights   [10]int // how often each kind of step is taken
}

type simulatedPod struct {
	hash  string
	owner types.UID // its ReplicaSet; empty: none
	name  string    // of a direct pod
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	x := &simulation{
		T: t, rng: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(1e9, 0), version: 1,
		deployment: restingDeployment(), sets: map[string]*appsv1.ReplicaSet{}, pods: map[string]simulatedPod{},
	}
	x.deploymentByDC = x.deployment.DeepCopy()
	x.seenByDC, x.setsByRSC = map[string]*appsv1.ReplicaSet{}, map[string]*appsv1.ReplicaSet{}
	x.lead()
	return x
}

func (x *simulation) note(format string, args ...any) {
	x.log = append(x.log, fmt.Sprintf(format, args...))
}

func (x *simulation) nextVersion() string {
	x.version++
	return strconv.Itoa(x.version)
}

// lead begins with a new machine, as another process does.
func (x *simulation) lead() {
	x.note("a new leader")
	x.m = machine{written: unknown}
	x.service = service{sets: map[types.UID]*appsv1.ReplicaSet{}, emptySince: x.now}
	x.knownPods = map[string]simulatedPod{}
	for _, i := range x.rng.Perm(2) {
		if i == 0 {
			x.observeDeployment()
		} else {
			x.observePods(true)
		}
	}
	x.observeSets()
	x.ask(int(x.m.want)) // it takes what it finds for wanted
}

func (x *simulation) observeDeployment() {
	d := x.deployment.DeepCopy()
	x.service.deployment = d
	x.m.deploymentSeen(string(d.UID), parseVersion(d.ResourceVersion), replicasOf(d), 0, 0)
}

func (x *simulation) observeSets() {
	clear(x.service.sets)
	for _, s := range x.sets {
		x.service.sets[s.UID] = s.DeepCopy()
	}
}

func (x *simulation) observePods(inherited bool) {
	for uid := range x.knownPods {
		if _, exists := x.pods[uid]; !exists {
			delete(x.knownPods, uid)
			x.m.podLost(uid)
			x.service.emptySince = x.now
		}
	}
	for uid, p := range x.pods {
		x.knownPods[uid] = p
		if p.owner == "" {
			x.m.podFound(uid, p.hash, "", inherited, x.now)
		}
	}
}

// observation returns what the machine decides on.
func (x *simulation) observation() observation {
	o := observation{now: x.now, deployment: x.service.deployment, pods: len(x.knownPods),
		emptySince: x.service.emptySince}
	if d := o.deployment; string(d.UID) != x.m.uid || parseVersion(d.ResourceVersion) < x.m.version {
		o.deployment = nil
	}
	for _, s := range x.service.sets {
		o.sets = append(o.sets, s)
	}
	return o
}

// act takes one action of the machine, and reports whether there was one.
func (x *simulation) act() bool {
	if what, at := x.m.due(x.observation()); x.m.stage == idle && (what == noTask || at.After(x.now)) {
		return false
	}
	a := x.m.next(x.observation())
	if _, waits := a.(wait); waits || x.m.stage == idle {
		return false
	}
	x.note("machine: %s", describe(a, x.now))
	if _, ok := a.(giveUp); ok {
		x.m.done(result{err: errors.New("gave up")}, x.now)
		return true
	}
	if x.mayFail && x.rng.IntN(8) == 0 {
		x.note("  is refused")
		x.m.done(result{err: errors.New("refused")}, x.now)
		return true
	}
	res := x.perform(a)
	if x.mayFail && x.rng.IntN(8) == 0 {
		x.note("  is not answered")
		res = result{err: errors.New("not answered"), created: res.created[:x.rng.IntN(len(res.created)+1)]}
	}
	x.m.done(res, x.now)
	return true
}

func (x *simulation) changeDeployment(change func(*appsv1.Deployment)) {
	before := x.deployment.DeepCopy()
	change(x.deployment)
	if before.Spec.Paused != x.deployment.Spec.Paused || replicasOf(before) != replicasOf(x.deployment) {
		x.deployment.Generation++
		x.deployment.ResourceVersion = x.nextVersion()
	}
}

func (x *simulation) perform(a action) (res result) {
	switch a := a.(type) {
	case scale:
		x.changeDeployment(func(d *appsv1.Deployment) { d.Spec.Replicas = &a.replicas })
		res.version = parseVersion(x.deployment.ResourceVersion)
	case setPaused:
		if a.version != "" && a.version != x.deployment.ResourceVersion {
			return result{err: errors.New("conflict")}
		}
		x.changeDeployment(func(d *appsv1.Deployment) { d.Spec.Paused = a.paused })
	case createPods:
		k := 0
		for range a.n {
			uid := ""
			for ; uid == "" || a.known[uid]; k++ {
				uid = x.createDirect(a.pod.Labels["pod-template-hash"], directName(a.pod, k))
			}
			res.created = append(res.created, uid)
		}
	case deletePods:
		for _, uid := range a.uids {
			x.deletePod(uid)
		}
	case createSet:
		if x.sets[a.set.Name] == nil {
			x.createSet(a.set.Name, a.set.Spec.Selector.MatchLabels["pod-template-hash"], *a.set.Spec.Replicas)
		}
	case deleteSet:
		s := x.sets[a.set.Name]
		if s != nil && s.UID == a.set.UID && s.ResourceVersion != a.set.ResourceVersion {
			return result{err: errors.New("conflict")}
		}
		if s != nil && s.UID == a.set.UID {
			delete(x.sets, s.Name)
			for uid, p := range x.pods {
				if p.owner == s.UID {
					x.deletePod(uid)
				}
			}
		}
	}
	return res
}

func (x *simulation) createSet(name, hash string, replicas int32) {
	s := setOf(name, replicas, "")
	s.UID = types.UID(name + "-" + x.nextVersion())
	s.ResourceVersion, s.Labels = x.nextVersion(), map[string]string{"pod-template-hash": hash}
	x.sets[name] = s
}

// createDirect returns the UID of the pod with a name, which may exist.
func (x *simulation) createDirect(hash, name string) string {
	for uid, p := range x.pods {
		if p.name == name {
			x.note("  %s exists", uid)
			return uid
		}
	}
	uid := x.createPod(hash, "")
	p := x.pods[uid]
	p.name = name
	x.pods[uid] = p
	return uid
}

// createPod and deletePod hold the property: whatever creates or deletes a pod, there are never more than were
// wanted, nor fewer, since all came to rest.
func (x *simulation) createPod(hash string, owner types.UID) string {
	x.nextPod++
	uid := fmt.Sprint("pod-", x.nextPod)
	x.pods[uid] = simulatedPod{hash: hash, owner: owner}
	x.note("  %s is created by %q", uid, owner)
	if len(x.pods) > x.most {
		x.fail("there are %d pods, and at most %d were wanted", len(x.pods), x.most)
	}
	return uid
}

func (x *simulation) deletePod(uid string) {
	if _, exists := x.pods[uid]; !exists {
		return
	}
	delete(x.pods, uid)
	x.note("  %s is deleted", uid)
	if len(x.pods) < x.fewest && !x.lost {
		x.fail("there are %d pods, and at least %d were wanted", len(x.pods), x.fewest)
	}
}

func (x *simulation) fail(format string, args ...any) {
	x.Helper()
	for _, l := range x.log[max(0, len(x.log)-60):] {
		x.Log(l)
	}
	x.Fatalf(format, args...)
}

// updateSet changes a ReplicaSet if it is as its writer has seen it.
func (x *simulation) updateSet(seen *appsv1.ReplicaSet, change func(*appsv1.ReplicaSet)) {
	if s := x.sets[seen.Name]; s != nil && s.ResourceVersion == seen.ResourceVersion {
		change(s)
		s.ResourceVersion = x.nextVersion()
	}
}

// deploymentController does what the Deployment controller does next, and reports whether that is anything.
func (x *simulation) deploymentController() bool {
	d, before := x.deploymentByDC, x.version
	for _, name := range slices.Sorted(maps.Keys(x.seenByDC)) {
		s, n := x.seenByDC[name], replicasOf(d)
		if s.Annotations[revisionAnnotation] != "" && *s.Spec.Replicas == n {
			continue
		}
		x.updateSet(s, func(live *appsv1.ReplicaSet) {
			x.note("Deployment controller: recognizes %s, and scales it to %d", name, n)
			live.Annotations, live.Spec.Replicas = map[string]string{revisionAnnotation: "1"}, &n
		})
		if x.version == before {
			return false // a conflict: it goes on when it sees the ReplicaSet as it is
		}
		x.seenByDC[name] = x.sets[name].DeepCopy()
	}
	if len(x.seenByDC) == 0 && !d.Spec.Paused && x.sets["app-own"] == nil {
		x.note("Deployment controller: creates a ReplicaSet of %d", replicasOf(d))
		x.createSet("app-own", "own", replicasOf(d))
		return true
	}
	if live := x.deployment; live.ResourceVersion == d.ResourceVersion && live.Status.ObservedGeneration < d.Generation {
		live.Status.ObservedGeneration, live.ResourceVersion = d.Generation, x.nextVersion()
	}
	return x.version != before
}

// replicaSetController does what the ReplicaSet controller does next, and reports whether that is anything.
func (x *simulation) replicaSetController() bool {
	before := x.version + x.nextPod
	for _, name := range slices.Sorted(maps.Keys(x.setsByRSC)) {
		s := x.setsByRSC[name]
		if live := x.sets[name]; live == nil || live.UID != s.UID {
			continue // what it owned is deleted with it
		}
		var owned []string
		for _, uid := range slices.Sorted(maps.Keys(x.pods)) {
			p := x.pods[uid]
			if p.owner == "" && p.hash == s.Labels["pod-template-hash"] {
				x.note("ReplicaSet controller: %s adopts %s", name, uid)
				p.owner = s.UID
				x.pods[uid] = p
				x.version++
			}
			if p.owner == s.UID {
				owned = append(owned, uid)
			}
		}
		for n := len(owned); n < int(*s.Spec.Replicas); n++ {
			owned = append(owned, x.createPod(s.Labels["pod-template-hash"], s.UID))
		}
		for len(owned) > int(*s.Spec.Replicas) {
			x.deletePod(owned[0])
			owned = owned[1:]
			x.version++
		}
		if n := int32(len(owned)); s.Status.Replicas != n {
			x.updateSet(s, func(s *appsv1.ReplicaSet) { s.Status.Replicas = n })
		}
	}
	return x.version+x.nextPod != before
}

func copySets(in map[string]*appsv1.ReplicaSet) map[string]*appsv1.ReplicaSet {
	out := map[string]*appsv1.ReplicaSet{}
	for name, s := range in {
		out[name] = s.DeepCopy()
	}
	return out
}

// step lets one of all that may happen happen. What happens rarely in one round is frequent in another.
func (x *simulation) step() {
	total := 0
	for _, w := range x.weights {
		total += w
	}
	kind, n := 0, x.rng.IntN(total)
	for n >= x.weights[kind] {
		n -= x.weights[kind]
		kind++
	}
	switch kind {
	case 0:
		x.observeDeployment()
	case 1:
		x.observeSets()
	case 2:
		x.observePods(false)
	case 3:
		x.deploymentByDC = x.deployment.DeepCopy()
	case 4:
		x.seenByDC = copySets(x.sets)
	case 5:
		x.setsByRSC = copySets(x.sets)
	case 6:
		x.deploymentController()
	case 7:
		x.replicaSetController()
	case 8:
		// The one wait that ends in any case is for a Deployment controller that does not look at the ReplicaSet.
		later := x.now.Add(time.Duration(x.rng.IntN(4000)) * time.Millisecond)
		if x.m.stage != recognizing || later.Before(x.m.recognizeUntil(x.observation().deployment)) {
			x.now = later
		}
	case 9:
		x.act()
	}
	// Direct pods are there, and no controller has been given anything to do.
	if dir := x.m.direct; dir != nil && !dir.announced && x.m.stage == idle && !x.m.pending() &&
		len(x.pods) == len(dir.uids) {
		x.fewest, x.most = len(x.pods), len(x.pods)
	}
}

// ask wants a number of pods.
func (x *simulation) ask(n int) {
	x.note("%d pods are wanted", n)
	x.m.want, x.asked = int32(n), int32(n)
	x.fewest, x.most = min(x.fewest, n), max(x.most, n)
}

// settle lets everything happen, without faults, until nothing does any more.
func (x *simulation) settle() {
	x.mayFail = false
	for round := 0; ; round++ {
		x.observeDeployment()
		x.observeSets()
		x.observePods(false)
		x.deploymentByDC, x.seenByDC, x.setsByRSC = x.deployment.DeepCopy(), copySets(x.sets), copySets(x.sets)
		acted := x.deploymentController()
		acted = x.replicaSetController() || acted
		acted = x.act() || acted
		if what, _ := x.m.due(x.observation()); !acted && what == noTask && x.m.stage == idle {
			break
		}
		if x.m.stage != recognizing {
			x.now = x.now.Add(time.Second)
		}
		if round > 200 {
			x.fail("it does not settle: %+v", x.m)
		}
	}
	if len(x.pods) != int(x.m.want) || x.m.want != x.asked {
		x.fail("%d pods, %d are wanted, and %d were asked for", len(x.pods), x.m.want, x.asked)
	}
	if d := x.deployment; x.m.want == 0 && !atRest(d, slices.Collect(maps.Values(x.sets))) {
		x.fail("the Deployment of a service that sleeps is not at rest: %+v, %d ReplicaSets", d.Spec, len(x.sets))
	} else if x.m.want > 0 && (d.Spec.Paused || replicasOf(d) != x.m.want || len(x.sets) != 1) {
		x.fail("the pods were not handed over: %+v, %d ReplicaSets", d.Spec, len(x.sets))
	}
	x.lost, x.fewest, x.most = false, len(x.pods), len(x.pods)
	x.log = nil
}

// Whatever is observed in whichever order, and whichever request fails, no controller ever creates a pod that is not
// wanted or deletes one that is; and in the end there are as many as are wanted.
func TestNoPodTooManyOrTooFew(t *testing.T) {
	t.Parallel()
	seeds := uint64(2000)
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		x := newSimulation(t, seed)
		x.settle()
		for range 8 {
			x.note("seed %d", seed)
			for i := range x.weights {
				x.weights[i] = 1 + x.rng.IntN(3)*x.rng.IntN(6)
			}
			wanted := []int{int(x.m.want), x.rng.IntN(4)}
			x.ask(wanted[1])
			x.mayFail = x.rng.IntN(2) == 0
			for range x.rng.IntN(200) {
				x.step()
				switch {
				case x.rng.IntN(50) == 0:
					x.ask(wanted[x.rng.IntN(2)])
				case x.rng.IntN(100) == 0:
					x.lead()
				case x.rng.IntN(200) == 0 && len(x.pods) > 0:
					uid := slices.Min(slices.Collect(maps.Keys(x.pods)))
					x.note("%s is lost", uid)
					delete(x.pods, uid)
					x.lost = true
				}
			}
			x.settle()
		}
	}
}
