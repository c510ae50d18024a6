// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// A service is created, woken by a SYN, put to sleep by kubectl scale, and removed.
func TestServiceWakesSleepsAndIsRemoved(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("hello")
	a := w.vip("hello")
	if s, _ := w.d.has(a); s.Flags&wire.FlagAnnounce == 0 || s.IdleSeconds != 300 {
		t.Errorf("daemons got %+v", s)
	}
	w.condition("hello", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	w.condition("hello", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
	w.condition("hello", v1alpha1.ConditionProgressing, metav1.ConditionFalse, "Complete")
	if n := w.replicas("hello"); n != 0 {
		t.Errorf("%d replicas of a service without traffic", n)
	}
	w.until("spec.replicas is 0", func() bool { r := w.service("hello").Spec.Replicas; return r != nil && *r == 0 })

	var svc corev1.Service
	var slice discoveryv1.EndpointSlice
	if !w.get("hello", &svc) || !w.get("hello", &slice) {
		t.Fatal("there is no Service or no EndpointSlice")
	}
	if in := svc.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != a.Addr().String() ||
		*in[0].IPMode != corev1.LoadBalancerIPModeProxy {
		t.Errorf("the Service has the addresses %+v", in)
	}
	if len(svc.Spec.Selector) > 0 || *svc.Spec.LoadBalancerClass != v1alpha1.LoadBalancerClass ||
		svc.Spec.Ports[0].NodePort != 0 {
		t.Errorf("the Service is %+v", svc.Spec)
	}
	if e := slice.Endpoints; len(e) != 1 || e[0].Addresses[0] != a.Addr().String() || *slice.Ports[0].Port != 80 ||
		slice.Labels[discoveryv1.LabelServiceName] != "hello" {
		t.Errorf("the EndpointSlice is %+v", slice)
	}

	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 })
	w.condition("hello", v1alpha1.ConditionAwake, metav1.ConditionTrue, "Warm")
	w.until("the status is written", func() bool {
		s := w.service("hello")
		return s.Status.Replicas == 1 && s.Status.State == "Warm" && s.Status.DesiredReplicas == 1 && *s.Spec.Replicas == 1 &&
			s.Status.LastWake != nil && s.Status.LastWake.Result == "warm" && s.Status.LatestRequest != nil &&
			s.Status.Selector == v1alpha1.LabelService+"=hello"
	})

	// kubectl scale --replicas=0
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 0}}
	s := w.service("hello")
	if err := w.client.SubResource("scale").Update(t.Context(), s, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	w.until("it sleeps", func() bool {
		return w.d.serving(a) == 0 && w.replicas("hello") == 0 && w.service("hello").Status.State == "Cold"
	})
	w.until("the Events", func() bool { return hasAll(w.reasons("hello"), "AddressAssigned", "Woke", "Slept") })

	if err := w.client.Delete(t.Context(), w.service("hello")); err != nil {
		t.Fatal(err)
	}
	w.until("daemons have removed it", func() bool { _, ok := w.d.has(a); return !ok })
}

// Others scale a service, within its limits. The operator does not write their number back.
func TestScaleWithinLimitsIsObeyed(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("many", func(s *v1alpha1.WangellServiceSpec) { s.MaxReplicas = 3 })
	a := w.vip("many")
	three := int32(3)
	w.change("many", func(s *v1alpha1.WangellServiceSpec) { s.Replicas = &three })
	w.until("three pods serve", func() bool { return w.d.serving(a) == 3 && w.replicas("many") == 3 })
	w.until("the status is written", func() bool {
		s := w.service("many").Status
		return s.Replicas == 3 &&
			s.DesiredReplicas == 3
	})
	one := int32(1)
	w.change("many", func(s *v1alpha1.WangellServiceSpec) { s.Replicas = &one })
	w.until("one pod serves", func() bool { return w.d.serving(a) == 1 && w.replicas("many") == 1 })
	// An autoscaler that wants more than is allowed gets what is allowed; its number stays in the spec.
	nine := int32(9)
	w.change("many", func(s *v1alpha1.WangellServiceSpec) { s.Replicas = &nine })
	w.until("as many as are allowed serve", func() bool { return w.d.serving(a) == 3 })
	w.until("the status is written", func() bool { return w.service("many").Status.DesiredReplicas == 3 })
	if got := *w.service("many").Spec.Replicas; got != 9 {
		t.Errorf("spec.replicas was made %d", got)
	}
}

// A change of the spec reaches the Deployment, the Service and the daemons. The number of replicas stays.
func TestChangeOfTheSpecReachesObjectsAndDaemons(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("web")
	a := w.vip("web")
	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 })
	w.change("web", func(s *v1alpha1.WangellServiceSpec) {
		s.Image, s.Port, s.TargetPort, s.IdleTimeout = "registry.example/web:2", 81, 9090, 7
	})
	b := w.vip("web")
	if b.Port() != 81 || b.Addr() != a.Addr() {
		t.Errorf("it had %v and has %v", a, b)
	}
	var d appsv1.Deployment
	var svc corev1.Service
	var slice discoveryv1.EndpointSlice
	w.until("its objects are changed", func() bool {
		w.get("web", &d)
		w.get("web", &svc)
		w.get("web", &slice)
		c := d.Spec.Template.Spec.Containers[0]
		return c.Image == "registry.example/web:2" && c.Ports[0].ContainerPort == 9090 && svc.Spec.Ports[0].Port == 81 &&
			*slice.Ports[0].Port == 81
	})
	if *d.Spec.Replicas != 1 {
		t.Errorf("the Deployment has %d replicas", *d.Spec.Replicas)
	}
	w.until("daemons have the change", func() bool { s, ok := w.d.has(b); return ok && s.IdleSeconds == 7 })
	// A change by others is undone.
	patch := client.RawPatch(types.MergePatchType, []byte(
		`{"spec":{"template":{"spec":{"automountServiceAccountToken":true}}}}`))
	if err := w.client.Patch(t.Context(), &d, patch); err != nil {
		t.Fatal(err)
	}
	w.until("the Deployment is as it was", func() bool {
		w.get("web", &d)
		return !*d.Spec.Template.Spec.AutomountServiceAccountToken
	})
}

// A new leader finds pods, addresses and numbers of replicas as they were.
func TestNewLeaderTakesOver(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.run()
	w.apply("stays")
	w.apply("sleeps")
	a, b := w.vip("stays"), w.vip("sleeps")
	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 && w.service("stays").Status.State == "Warm" })
	var before corev1.PodList
	if err := w.client.List(t.Context(), &before, client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}
	stop()
	w.run()
	if got := w.vip("stays"); got != a {
		t.Errorf("it had %v and has %v", a, got)
	}
	w.until("it is known to be warm", func() bool {
		return w.service("stays").Status.State == "Warm" &&
			w.d.serving(a) == 1
	})
	w.until("the other wakes", func() bool { w.d.syn(b); return w.d.serving(b) == 1 }) // daemons ask until they are heard
	var after corev1.PodList
	if err := w.client.List(t.Context(), &after, client.InNamespace(w.namespace),
		client.MatchingLabels{v1alpha1.LabelService: "stays"}); err != nil {
		t.Fatal(err)
	}
	if len(before.Items) != 1 || len(after.Items) != 1 || before.Items[0].UID != after.Items[0].UID {
		t.Error("the pod is another one")
	}
}

// A leader that ends reports leaving pods to daemons until the next leader does, and then ends.
func TestLeaderThatEndsTellsUntilTheNextOneDoes(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.HandOver = patience
		c.Deployment = Name{c.Namespace, "controllers"}
	})
	w.controllers(2, map[string]string{"app": "controller"})
	stop := w.run()
	w.apply("web")
	a := w.vip("web")
	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 })
	before := w.d.servingIDs(a)[0]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stop()
	}()
	w.until("the Lease is released", func() bool {
		var l coordinationv1.Lease
		return w.get(w.cfg.Lease.Name, &l) && (l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "")
	})
	w.deleteOnlyPod()
	w.until("the daemon knows", func() bool { return !slices.Contains(w.d.servingIDs(a), before) })
	select {
	case <-ended:
		t.Error("it ended before the next leader was there")
	default:
	}
	w.cfg.HandOver = 0 // no daemon follows the next one
	w.run()
	<-ended
}

// The last leader does not wait for another one.
func TestLeaderOfADeploymentWithoutReplicasEndsAtOnce(t *testing.T) {
	for name, gone := range map[string]bool{"scaled to zero": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) {
				c.HandOver = 10 * patience
				c.Deployment = Name{c.Namespace, "controllers"}
			})
			if !gone {
				w.controllers(0, map[string]string{"app": "controller"})
			}
			stop := w.run()
			w.apply("web")
			a := w.vip("web")
			w.d.syn(a)
			w.until("a pod serves", func() bool { return w.d.serving(a) == 1 }) // so the daemon is connected
			stop()
		})
	}
}

// One that loses the Lease reports leaving pods, too.
func TestLeaderThatLosesTheLeaseTellsUntilTheNextOneDoes(t *testing.T) {
	lost := make(chan struct{})
	w := newWorld(t, func(c *Config) {
		c.HandOver = patience
		c.Log = slog.New(awaited{handsOver, sync.OnceFunc(func() { close(lost) })})
	})
	w.begin()
	w.apply("web")
	a := w.vip("web")
	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 })
	before := w.d.servingIDs(a)[0]
	w.until("another one has the Lease", func() bool {
		var l coordinationv1.Lease
		w.get(w.cfg.Lease.Name, &l)
		l.Spec.HolderIdentity = new("operator/127.0.0.1:1")
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		return w.client.Update(t.Context(), &l) == nil
	})
	select {
	case <-lost: // after RenewDeadline
	case <-time.After(patience):
		t.Fatal("it does not notice")
	}
	w.deleteOnlyPod()
	w.until("the daemon knows", func() bool { return !slices.Contains(w.d.servingIDs(a), before) })
	select {
	case err := <-w.ended:
		t.Fatalf("its process would have ended before the next leader was there: %v", err)
	default:
	}
	w.d.client.Close() // to the next leader
	select {
	case err := <-w.ended:
		if !errors.Is(err, ErrLostLease) {
			t.Errorf("it ended: %v", err)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}

// The status says why a wake fails: the image cannot be pulled, or no node has room.
func TestWakeFailsWithoutAnImageOrRoom(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("bad", func(s *v1alpha1.WangellServiceSpec) { s.WakeTimeout = 3 })
	a := w.vip("bad")
	w.d.mu.Lock()
	w.d.broken = "image"
	w.d.mu.Unlock()
	w.d.syn(a)
	message := w.condition("bad", v1alpha1.ConditionReady, metav1.ConditionFalse, "WakeFailed")
	if want := `image "registry.example/app-bad:1" cannot be pulled: manifest unknown`; !contains(message, want) {
		t.Errorf("got %q", message)
	}
	w.until("the Event", func() bool { return hasAll(w.reasons("bad"), "WakeFailed") })
	w.until("nothing is wanted", func() bool { return w.replicas("bad") == 0 })

	w.apply("big", func(s *v1alpha1.WangellServiceSpec) { s.WakeTimeout = 3 })
	b := w.vip("big")
	w.d.mu.Lock()
	w.d.broken = "room"
	w.d.mu.Unlock()
	w.d.syn(b)
	if message := w.condition("big", v1alpha1.ConditionScheduled, metav1.ConditionFalse,
		"Unschedulable"); !contains(message, "1 Insufficient cpu") {
		t.Errorf("got %q", message)
	}
	if message := w.condition("big", v1alpha1.ConditionReady, metav1.ConditionFalse, "WakeFailed"); !contains(message,
		"no node takes pod big-") {
		t.Errorf("got %q", message)
	}
	w.d.mu.Lock()
	if reason := w.d.refused[b]; !contains(reason, "1 Insufficient cpu") {
		t.Errorf("clients were refused because %q", reason)
	}
	w.d.mu.Unlock()
}

func TestServicesGetAddressesFromThePools(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	at := func(ip string) func(*v1alpha1.WangellServiceSpec) {
		return func(s *v1alpha1.WangellServiceSpec) { s.Address = ip }
	}
	w.apply("a", at("10.46.100.3"))
	if a := w.vip("a"); a.Addr().String() != "10.46.100.3" {
		t.Errorf("it got %v", a)
	}
	w.apply("b", at("10.46.100.3"))
	if m := w.condition("b", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Conflict"); !contains(m,
		"is already used by service "+w.namespace+"/a") {
		t.Errorf("got %q", m)
	}
	w.condition("b", v1alpha1.ConditionReady, metav1.ConditionFalse, "NoAddress")
	w.apply("c", at("10.9.9.9"))
	w.condition("c", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "OutOfRange")
	// As soon as it is free, it is given.
	if err := w.client.Delete(context.Background(), w.service("a")); err != nil {
		t.Fatal(err)
	}
	w.condition("b", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
}

// The load balancer of another class gives the address.
func TestAddressOfAnotherLoadBalancerIsUsed(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("cloud", func(s *v1alpha1.WangellServiceSpec) { s.LoadBalancerClass = "example.com/lb" })
	w.condition("cloud", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Pending")
	var svc corev1.Service
	w.get("cloud", &svc)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb-7.example.com"}}
	if err := w.client.Status().Update(t.Context(), &svc); err != nil {
		t.Fatal(err)
	}
	// It sends to node ports, from which kube-proxy leads to the endpoint, an address of the pools.
	if m := w.condition("cloud", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned"); !contains(m,
		"lb-7.example.com") {
		t.Errorf("got %q", m)
	}
	if host := w.service("cloud").Status.LoadBalancerHostname; host != "lb-7.example.com" {
		t.Errorf("the status has the host name %q", host)
	}
	var slice discoveryv1.EndpointSlice
	a := w.vip("cloud")
	w.get("cloud", &slice)
	if s, _ := w.d.has(a); !contains(a.Addr().String(), "10.46.100.") || s.Flags&wire.FlagAnnounce != 0 ||
		slice.Endpoints[0].Addresses[0] != a.Addr().String() {
		t.Errorf("daemons know it as %+v; its endpoint is %v", s, slice.Endpoints)
	}
	w.get("cloud", &svc)
	if svc.Spec.Ports[0].NodePort == 0 || len(svc.Status.LoadBalancer.Ingress) != 1 ||
		svc.Status.LoadBalancer.Ingress[0].IP != "" {
		t.Errorf("the Service is %+v, %+v", svc.Spec, svc.Status)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	if err := w.client.Status().Update(t.Context(), &svc); err != nil {
		t.Fatal(err)
	}
	w.until("it has the load balancer's address", func() bool {
		st := w.service("cloud").Status
		return st.LoadBalancerIP == "198.51.100.7" && st.LoadBalancerHostname == ""
	})
	a = w.vip("cloud")
	if s, _ := w.d.has(a); a.Addr().String() != "198.51.100.7" || s.Flags&wire.FlagAnnounce != 0 {
		t.Errorf("daemons know it as %+v", s)
	}
	// Back to our own: the Service loses the load balancer's address.
	w.change("cloud", func(s *v1alpha1.WangellServiceSpec) { s.LoadBalancerClass = "" })
	w.until("it has an address of the pools", func() bool {
		return contains(w.service("cloud").Status.LoadBalancerIP, "10.46.100.") && w.get("cloud", &svc) &&
			*svc.Spec.LoadBalancerClass == v1alpha1.LoadBalancerClass
	})
}

// A Service of Wangell's own class gets a node port if the controller says so, and loses it if it no longer does.
func TestServicesHaveNodePorts(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.NodePorts = true })
	stop := w.run()
	w.apply("hello")
	var svc corev1.Service
	w.until("it has a node port", func() bool {
		return w.get("hello", &svc) && svc.Spec.Ports[0].NodePort != 0
	})
	w.condition("hello", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
	stop()
	w.cfg.NodePorts = false
	w.run()
	w.until("it has no node port", func() bool {
		return w.get("hello", &svc) && svc.Spec.Ports[0].NodePort == 0
	})
}

// Objects of other owners are not changed.
func TestObjectsOfOtherOwnersAreNotChanged(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "taken"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5}}}}
	w.create(theirs)
	w.apply("taken")
	if m := w.condition("taken", v1alpha1.ConditionReady, metav1.ConditionFalse, "Refused"); !contains(m,
		"Service "+w.namespace+"/taken exists already") {
		t.Errorf("got %q", m)
	}
	var svc corev1.Service
	if w.get("taken", &svc); svc.ResourceVersion != theirs.ResourceVersion {
		t.Error("it was changed")
	}
	if w.replicas("taken") != -1 {
		t.Error("a Deployment was made")
	}
}

// The status says that the API server refused a template.
func TestRefusedTemplateIsReported(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("odd", func(s *v1alpha1.WangellServiceSpec) {
		refused := corev1.PodSpec{Containers: []corev1.Container{{Name: "Not a name", Image: "a"}}}
		s.Image, s.Template = "", &corev1.PodTemplateSpec{Spec: refused}
	})
	w.condition("odd", v1alpha1.ConditionProgressing, metav1.ConditionFalse, "Refused")
	w.apply("unread", func(s *v1alpha1.WangellServiceSpec) { s.Image = "Not an image" })
	if m := w.condition("unread", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Invalid"); !contains(m,
		"spec.image") {
		t.Errorf("got %q", m)
	}
}

// After a change of the leader, a service whose manifest has a mistake is served as its last valid spec says.
func TestNewLeaderServesTheLastGoodSpec(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.run()
	names := []string{"invalid", "refused", "moved"}
	vips := map[string]netip.AddrPort{}
	for _, name := range names {
		w.apply(name)
		vips[name] = w.vip(name)
		w.d.syn(vips[name])
		w.until("a pod serves", func() bool { return w.d.serving(vips[name]) == 1 && w.service(name).Status.State == "Warm" })
	}
	w.change("invalid", func(s *v1alpha1.WangellServiceSpec) { s.Port, s.Image = 81, "Not an image" })
	w.change("refused", func(s *v1alpha1.WangellServiceSpec) {
		refused := corev1.PodSpec{Containers: []corev1.Container{{Name: "Not a name", Image: "a"}}}
		s.Image, s.Template = "", &corev1.PodTemplateSpec{Spec: refused}
	})
	w.change("moved", func(s *v1alpha1.WangellServiceSpec) { s.Address = "10.9.9.9" })
	reasons := map[string]string{"invalid": "Invalid", "refused": "Refused", "moved": "NoAddress"}
	for _, name := range names {
		w.condition(name, v1alpha1.ConditionReady, metav1.ConditionFalse, reasons[name])
	}
	stop()
	w.d.mu.Lock()
	clear(w.d.table)
	clear(w.d.backends)
	w.d.mu.Unlock()
	w.run()
	for _, name := range names {
		w.until(name+" is known again", func() bool {
			return w.d.serving(vips[name]) == 1 &&
				w.service(name).Status.State == "Warm"
		})
		if _, has := w.d.has(vips[name]); !has {
			t.Errorf("%s is not in the daemon's table", name)
		}
		w.condition(name, v1alpha1.ConditionReady, metav1.ConditionFalse, reasons[name])
	}
	w.change("moved", func(s *v1alpha1.WangellServiceSpec) { s.Address = "" })
	w.condition("moved", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
}

func TestServiceIsNotReadyWithoutADaemon(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("a")
	w.condition("a", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	w.d.client.Close()
	w.condition("a", v1alpha1.ConditionReady, metav1.ConditionFalse, "NoDaemon")
	w.d = newPlayer(w, w.d.server)
	w.condition("a", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
}

// Clients of a new service are served once daemons have divided its address among them, and not before.
func TestServiceIsNotReadyBeforeADaemonConnects(t *testing.T) {
	w := newWorld(t, nil)
	w.d = newPlayer(w, "") // it has no server
	w.d.client.Close()
	stop := w.run()
	w.apply("a")
	w.condition("a", v1alpha1.ConditionReady, metav1.ConditionFalse, "Starting")
	var l coordinationv1.Lease
	if !w.get(w.cfg.Lease.Name, &l) {
		t.Fatal("no Lease")
	}
	w.d = newPlayer(w, strings.TrimPrefix(*l.Spec.HolderIdentity, "operator/"))
	w.condition("a", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	// One that was ready stays so while daemons connect to the next leader.
	stop()
	ready := apimeta.FindStatusCondition(w.service("a").Status.Conditions, v1alpha1.ConditionReady)
	w.run()
	w.apply("b")
	w.condition("b", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	now := apimeta.FindStatusCondition(w.service("a").Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || now == nil || !now.LastTransitionTime.Equal(&ready.LastTransitionTime) {
		t.Errorf("ready %+v, then %+v", ready, now)
	}
}

// counting counts requests that list or watch all Deployments of a namespace.
type counting struct {
	http.RoundTripper
	lists, watches *atomic.Int32
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/deployments") {
		if r.URL.Query().Get("watch") == "true" {
			c.watches.Add(1)
		} else {
			c.lists.Add(1)
		}
	}
	return c.RoundTripper.RoundTrip(r)
}

// The operator and its runtime have one cache of Deployments between them.
func TestDeploymentsAreListedAndWatchedOnce(t *testing.T) {
	var lists, watches atomic.Int32
	w := newWorld(t, func(c *Config) {
		c.Rest = rest.CopyConfig(c.Rest)
		c.Rest.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counting{rt, &lists, &watches} })
	})
	w.run()
	w.apply("app")
	w.condition("app", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	t.Logf("%d lists, %d watches", lists.Load(), watches.Load())
	if lists.Load() > 1 || watches.Load() != 1 {
		t.Errorf("Deployments were listed %d times and watched %d times", lists.Load(), watches.Load())
	}
}
