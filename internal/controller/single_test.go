// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// writes makes the pods of a service write to a folder of the machine.
func writes(s *v1alpha1.WangellServiceSpec) {
	s.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/srv"},
	}})
	s.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
}

// alone fails the test if a pod is started while another one has not been removed.
func alone(w *world) {
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error {
		if running, _, _ := w.rt.state(); len(running) > 0 {
			w.t.Errorf("a pod is started beside %v", running)
		}
		return nil
	}
}

func TestClientWaitsUntilThePreviousWriterIsGone(t *testing.T) {
	waitsForThePodBefore(t, `waits for pod a-1 on n1 to end: it may still write volume "data"`, writes)
}

func TestClientOfARecreatedServiceWaitsUntilThePodBeforeIsGone(t *testing.T) {
	waitsForThePodBefore(t, "waits for pod a-1 on n1 to end: updateStrategy is Recreate", recreated)
}

// A new updateStrategy restarts nothing, and holds for the pod that runs.
func TestUpdateStrategyHoldsForAPodThatRuns(t *testing.T) {
	waitsForThePodBefore(t, "waits for pod a-1 on n1 to end: updateStrategy is Recreate", rolling, recreated)
}

// recreated keeps the pods of a service apart.
func recreated(s *v1alpha1.WangellServiceSpec) { s.UpdateStrategy = v1alpha1.UpdateRecreate }

// rolling allows a pod of a service beside another one.
func rolling(s *v1alpha1.WangellServiceSpec) { s.UpdateStrategy = v1alpha1.UpdateRolling }

// stopsSlowly makes pods stop only once the caller closes gone. stopping is closed when the first one begins to.
func stopsSlowly(w *world) (stopping, gone chan struct{}) {
	stopping, gone = make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.rt.onStop = func(ctx context.Context, _ string) error {
		once.Do(func() { close(stopping) })
		select {
		case <-gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return stopping, gone
}

// waitsForThePodBefore wakes a service while its pod stops, and expects that it is told that this pod is waited for.
// The service gets the changed specs one after the other.
func waitsForThePodBefore(t *testing.T, want string, changes ...func(*v1alpha1.WangellServiceSpec)) {
	w := newWorld(t, nil)
	alone(w)
	stopping, gone := stopsSlowly(w)
	w.apply(newService("a", changes[0]))
	a := w.warm("a")
	for _, change := range changes[1:] {
		w.apply(newService("a", change))
	}
	var slept error
	done := make(chan struct{})
	go func() { slept = w.c.Sleep(t.Context(), "default/a"); close(done) }()
	<-stopping
	w.d.syn(a)
	w.until("the wait is told", func() bool { return w.status("a").Service.Status.Message == want })
	if _, started, _ := w.rt.state(); len(started) != 1 {
		t.Errorf("started %v", started)
	}
	close(gone)
	w.untilState("a", "Warm")
	if m := w.status("a").Service.Status.Message; m != "" {
		t.Errorf("message %q", m)
	}
	if <-done; slept != nil {
		t.Error(slept)
	}
}

// A service with RollingUpdate wakes beside the pod that stops, although both write to one volume.
func TestWriterWithRollingUpdateIsJoined(t *testing.T) {
	w := newWorld(t, nil)
	stopping, gone := stopsSlowly(w)
	w.apply(newService("a", writes, rolling))
	a := w.warm("a")
	done := make(chan struct{})
	go func() { _ = w.c.Sleep(t.Context(), "default/a"); close(done) }()
	<-stopping
	w.d.syn(a)
	w.until("the next pod runs beside it", func() bool { running, _, _ := w.rt.state(); return len(running) == 2 })
	close(gone)
	<-done
	w.untilState("a", "Warm")
}

func TestChangedSpecEndsTheWriterBeforeTheNextOneStarts(t *testing.T) {
	w := newWorld(t, nil)
	alone(w)
	w.apply(newService("a", writes))
	a := w.warm("a")
	w.apply(newService("a", writes, func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"-v"} }))
	w.until("replaced", func() bool {
		running, _, _ := w.rt.state()
		return len(running) == 1 && running[0] == "a-2"
	})
	w.until("it serves", func() bool { return strings.HasSuffix(w.d.pods(a), " serving") })
	if r := w.d.reasons(a); len(r) > 0 {
		t.Errorf("refused: %q", r)
	}
}

// What an earlier controller left of another spec ends before the new one starts, too.
func TestFoundWriterOfAnotherSpecEndsFirst(t *testing.T) {
	w := newWorld(t, nil)
	alone(w)
	older := newService("a", writes, func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"old"} })
	w.rt.add(older)
	w.apply(newService("a", writes))
	w.until("replaced", func() bool {
		running, _, _ := w.rt.state()
		return len(running) == 1 && running[0] == "a-2"
	})
}

// A pod that cannot be stopped keeps the next one waiting, however often it is tried.
func TestWriterThatCannotBeStoppedIsNeverJoined(t *testing.T) {
	w := newWorld(t, nil)
	alone(w)
	tries := make(chan struct{}, 100)
	w.rt.onStop = func(context.Context, string) error {
		tries <- struct{}{}
		if len(tries) < 3 {
			return errors.New("runtime: try again")
		}
		return nil
	}
	w.apply(newService("a", writes))
	a := w.warm("a")
	go func() { _ = w.c.Sleep(t.Context(), "default/a") }()
	<-tries
	w.d.syn(a)
	w.until("the next pod serves", func() bool {
		running, _, _ := w.rt.state()
		return len(running) == 1 && running[0] == "a-2"
	})
}

// While the node of a pod does not answer, no other pod starts, and what to do is told: whether clients wait or were
// refused. The service goes on once the pod is known to be gone, or its node is back.
func TestWriterOnALostNodeIsNeverJoined(t *testing.T) {
	for _, back := range []bool{false, true} {
		w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n2", "n1"} })
		alone(w.world)
		a := w.put(newService("a", writes, func(s *v1alpha1.WangellServiceSpec) {
			s.WakeTimeout, s.TerminationGracePeriodSeconds = 1, new(int64(0))
		}), 1)
		w.synced()
		w.scale("a", 1)
		w.untilPods(a, " serving")
		w.d2.client.Close()
		const what = `node n2 does not answer, and pod a-1 may still write volume "data" there: no other starts beside it. ` +
			"Once the machine is certainly off, delete the Node, or kubectl taint node n2 " +
			"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
		told := func(state string) func() bool {
			return func() bool {
				st := w.status("a")
				return st.Lost == what && st.Service.Status.Message == what && st.Service.Status.State == state
			}
		}
		w.until("the wait is told", told("Waking"))
		w.until("the wake fails", told("Failed"))
		w.d.syn(a)
		w.until("the next one waits", told("Waking"))
		if _, started, stopped := w.rt.state(); len(started) != 1 || len(stopped) != 0 {
			t.Fatalf("started %v, stopped %v", started, stopped)
		}
		node := "n1"
		if back {
			node = "n2"
			w.d2 = w.daemonOn("n2", &wire.Node{Addr: nodeAddr("n2")})
		} else {
			// As the cluster reports once the pod is gone from the API server.
			w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 137}
			w.d.syn(a)
		}
		w.until("it serves", func() bool {
			st := w.status("a")
			return st.Serving == 1 && len(st.Pods) == 1 && st.Pods[0].Node == node && st.Lost == ""
		})
	}
}

// keepingRuntime is a runtime whose images declare a volume that services keep.
type keepingRuntime struct{ *fakeRuntime }

// ImageVolumes implements runtime.ImageVolumeKeeper.
func (keepingRuntime) ImageVolumes(_ context.Context, s *v1alpha1.WangellService) (v runtime.ImageVolumes, err error) {
	if s.Spec.KeepsImageVolumes() {
		v.Kept = []string{"/data"}
	} else {
		v.Lost = []string{"/data"}
	}
	return v, nil
}

// What pods write to the volumes of their image is kept, so the pod before ends before the next one starts: when the
// service wakes, and when its manifest changes.
func TestPodsThatKeepVolumesOfTheirImageHaveOneWriter(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.Runtime = keepingRuntime{cfg.Runtime.(*fakeRuntime)} })
	alone(w)
	stopping, gone := stopsSlowly(w)
	w.apply(newService("a"))
	a := w.warm("a")
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"-v"} }))
	<-stopping
	w.d.syn(a)
	const want = `waits for pod a-1 on n1 to end: it may still write volume "/data"`
	w.until("the wait is told", func() bool { return w.status("a").Service.Status.Message == want })
	if _, started, _ := w.rt.state(); len(started) != 1 {
		t.Errorf("started %v", started)
	}
	close(gone)
	w.until("the next pod serves", func() bool { return w.d.pods(a) == " serving" })
}

// Without volumes that are kept, the next pod starts beside the one before, and a warning names what is lost.
func TestVolumesOfAnImageThatAreLostAreSaid(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.Runtime = keepingRuntime{cfg.Runtime.(*fakeRuntime)} })
	events := w.c.Subscribe(t.Context())
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.MaxReplicas = 2 }),
		newService("b", func(s *v1alpha1.WangellServiceSpec) { s.ImageVolumes = v1alpha1.ImageVolumesDiscard }))
	w.warm("b")
	var said []status.Event
	for len(said) == 0 {
		if e := <-events; e.Reason == v1alpha1.EventVolumesNotKept {
			said = append(said, e)
		}
	}
	const want = "what it writes to /data is lost when a pod ends: the image declares it as a volume, but maxReplicas " +
		"is above 1, so that two pods could write to it: mount a volume there, or write imageVolumes: Discard"
	if e := said[0]; e.Service != "default/a" || e.Text != want || e.Severity != status.SeverityWarning {
		t.Errorf("event %+v", e)
	}
}
