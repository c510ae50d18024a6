// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	wangellruntime "wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/freeport"
	"wangell.loutres.me/test/testutil/need"
)

// patience bounds the wait for what must happen, on a machine that may be busy.
const patience = 60 * time.Second

// apiServer is one real API server with its etcd for all tests of the package.
var apiServer struct {
	sync.Once
	env    *envtest.Environment
	config *rest.Config
	err    error
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{}))
	code := m.Run()
	if apiServer.env != nil {
		if err := apiServer.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// binaries is the folder with etcd and kube-apiserver: $KUBEBUILDER_ASSETS, or where test/cluster builds them.
func binaries() string {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	newest, at := "", time.Time{}
	found, _ := filepath.Glob(filepath.Join(cache, "wangell", "cluster", "*", "kube-apiserver"))
	for _, f := range found {
		dir := filepath.Dir(f)
		info, err := os.Stat(filepath.Join(dir, "etcd"))
		if err == nil && info.ModTime().After(at) {
			newest, at = dir, info.ModTime()
		}
	}
	return newest
}

// api returns how to reach the API server; the test is skipped if there are no programs for it.
func api(t *testing.T) *rest.Config {
	t.Helper()
	apiServer.Do(func() {
		dir := binaries()
		if dir == "" {
			return
		}
		env := &envtest.Environment{
			BinaryAssetsDirectory: dir, ErrorIfCRDPathMissing: true,
			CRDDirectoryPaths: []string{"../../../deploy/crd"},
			// On a busy machine an API server takes longer than the 20 s that envtest waits.
			ControlPlaneStartTimeout: 5 * time.Minute, ControlPlaneStopTimeout: time.Minute,
		}
		env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16,fd00:10::/112")
		if apiServer.config, apiServer.err = env.Start(); apiServer.err == nil {
			apiServer.env = env
			apiServer.config.QPS = -1
		}
	})
	if apiServer.err != nil {
		t.Fatalf("start an API server: %v", apiServer.err)
	}
	if apiServer.config == nil {
		need.Unmet(t, "needs etcd and kube-apiserver: "+
			"build them with 'make cluster-build', or set KUBEBUILDER_ASSETS to their folder")
	}
	return apiServer.config
}

// world is a namespace with an operator, and a fake daemon and cluster.
type world struct {
	t         *testing.T
	config    *rest.Config
	client    client.WithWatch
	namespace string
	key       wire.Key
	cfg       Config
	d         *player
	ended     <-chan error // has the error of the newest operator once that has ended
}

func newWorld(t *testing.T, change func(*Config)) *world {
	w := &world{t: t, config: api(t)}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.client, err = client.NewWithWatch(w.config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	w.create(ns)
	w.namespace = ns.Name
	w.haveNode("node-1", "192.0.2.1")
	rand.Read(w.key[:])
	pools, err := ParsePools([]string{"10.46.100.0/29"})
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = Config{
		Rest: w.config, Key: w.key, Pools: pools, Lease: Name{w.namespace, "leader"}, Namespace: w.namespace,
		LeaseDuration: 6 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 100 * time.Millisecond,
	}
	if os.Getenv("WANGELL_TEST_LOG") != "" {
		w.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if change != nil {
		change(&w.cfg)
	}
	return w
}

// haveNode makes sure that the cluster has a Node with an address. All tests share it.
func (w *world) haveNode(name, addr string) {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := w.client.Create(w.t.Context(), n)
	if apierrors.IsAlreadyExists(err) {
		err = w.client.Get(w.t.Context(), client.ObjectKeyFromObject(n), n)
	}
	if err == nil && len(n.Spec.Taints) > 0 { // a new Node is not ready
		n.Spec.Taints = nil
		err = w.client.Update(w.t.Context(), n)
	}
	if err == nil && len(n.Status.Addresses) == 0 {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}
		err = w.client.Status().Update(w.t.Context(), n)
	}
	if err != nil && !apierrors.IsConflict(err) { // else another test does the same
		w.t.Fatal(err)
	}
}

// run starts an operator and returns once it leads. It ends with the test, or when stop is called.
func (w *world) run() (stop func()) {
	w.t.Helper()
	cancel := w.begin()
	done := w.ended
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("the operator ended: %v", err)
			}
		case <-time.After(patience):
			w.t.Error("the operator does not end")
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// freeAddress returns an address at which an operator can listen, for the wire and for TCP. A port that is free for UDP
// may be that of somebody's TCP connection.
func (w *world) freeAddress() string {
	w.t.Helper()
	for {
		at := freeport.Reserve(w.t)
		conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			w.t.Fatal(err)
		}
		if err == nil {
			_ = conn.Close()
			return at.String()
		}
	}
}

// begin starts an operator and returns once it leads. It ends with the test, or when end is called; its error is in
// w.ended then.
func (w *world) begin() (end func()) {
	w.t.Helper()
	cfg := w.cfg
	cfg.WireAddress = w.freeAddress()
	cfg.Identity = "operator/" + cfg.WireAddress
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w.ended = done
	go func() { done <- Run(ctx, cfg) }()
	w.t.Cleanup(cancel)
	w.until("it leads", func() bool {
		var l coordinationv1.Lease
		return w.get(cfg.Lease.Name, &l) && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == cfg.Identity
	})
	if w.d == nil {
		w.d = newPlayer(w, cfg.WireAddress)
	} else {
		w.d.client.SetServer(cfg.WireAddress)
	}
	return cancel
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.client.Create(context.Background(), o); err != nil {
		w.t.Fatal(err)
	}
}

// apply creates a service.
func (w *world) apply(name string, change ...func(*v1alpha1.WangellServiceSpec)) *v1alpha1.WangellService {
	w.t.Helper()
	s := &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.WangellServiceSpec{
			Image: "registry.example/app-" + name + ":1", Port: 80, TargetPort: 8080,
		},
	}
	for _, f := range change {
		f(&s.Spec)
	}
	w.create(s)
	return s
}

// change changes the spec of a service.
func (w *world) change(name string, f func(*v1alpha1.WangellServiceSpec)) {
	w.t.Helper()
	w.until("the spec of "+name+" is changed", func() bool {
		var s v1alpha1.WangellService
		if !w.get(name, &s) {
			return false
		}
		f(&s.Spec)
		err := w.client.Update(context.Background(), &s)
		if err != nil && !apierrors.IsConflict(err) {
			w.t.Fatal(err)
		}
		return err == nil
	})
}

// get reads an object of the namespace, and reports whether it exists.
func (w *world) get(name string, o client.Object) bool {
	w.t.Helper()
	err := w.client.Get(context.Background(), client.ObjectKey{Namespace: w.namespace, Name: name}, o)
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return err == nil
}

// service reads a service.
func (w *world) service(name string) *v1alpha1.WangellService {
	w.t.Helper()
	s := new(v1alpha1.WangellService)
	w.get(name, s)
	return s
}

// until waits until a condition holds.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if holds() {
			return
		}
	}
	w.t.Fatalf("did not happen: %s", what)
}

// condition waits until a condition of a service has a status and a reason, and returns its message.
func (w *world) condition(name, kind string, status metav1.ConditionStatus, reason string) string {
	w.t.Helper()
	message, last := "", "nothing"
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the conditions of %s: %s", name, last)
		}
	}()
	w.until(fmt.Sprintf("%s: %s=%s (%s)", name, kind, status, reason), func() bool {
		s := w.service(name)
		last = fmt.Sprintf("%+v", s.Status.Conditions)
		i := slices.IndexFunc(s.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == kind && c.Status == status && c.Reason == reason && c.ObservedGeneration == s.Generation
		})
		if i >= 0 {
			message = s.Status.Conditions[i].Message
		}
		return i >= 0
	})
	return message
}

// controllers creates the Deployment "controllers", whose pods have these labels.
func (w *world) controllers(replicas int32, labels map[string]string) {
	w.t.Helper()
	w.create(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "controllers"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "controller", Image: "registry.example/controller:1"}}}}},
	})
}

// replicas returns those of a Deployment; -1 if there is none.
func (w *world) replicas(name string) int32 {
	var d appsv1.Deployment
	if !w.get(name, &d) {
		return -1
	}
	return *d.Spec.Replicas
}

// reasons returns those of the Events of a service.
func (w *world) reasons(name string) []string {
	w.t.Helper()
	var list eventsv1.EventList
	if err := w.client.List(context.Background(), &list, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range list.Items {
		if e.Regarding.Name == name {
			found[e.Reason] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// player stands for the ReplicaSet controller, and the kubelet and the daemon of one node.
type player struct {
	w         *world
	namespace string // that of the world when the player began
	client    *wire.Client
	server    string

	mu       sync.Mutex
	table    map[netip.AddrPort]wire.Service
	backends map[netip.AddrPort]*wire.Backends
	refused  map[netip.AddrPort]string
	running  map[string]*corev1.Pod // by UID
	broken   string                 // if set, pods get no further than this
	open     uint32                 // connections of a pod that is drained
	images   []wire.ImageReport     // what it reports of images that it is to have
	seq      uint64
}

func newPlayer(w *world, server string) *player {
	p := &player{w: w, namespace: w.namespace, server: server, table: map[netip.AddrPort]wire.Service{},
		backends: map[netip.AddrPort]*wire.Backends{}, refused: map[netip.AddrPort]string{},
		running: map[string]*corev1.Pod{}}
	p.mu.Lock()
	var err error
	p.client, err = wire.NewClient(wire.ClientConfig{
		Server: server, Key: w.key.ForNode("node-1"), Node: "node-1",
		First:    []wire.Message{&wire.Node{Addr: netip.MustParseAddr("192.0.2.1")}},
		Services: p.services, Receive: p.receive, Connected: p.connected,
	})
	p.mu.Unlock()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() { p.play(ctx) })
	w.t.Cleanup(func() {
		cancel()
		playing.Wait()
		p.client.Close()
	})
	return p
}

func (p *player) services(full bool, upserts []wire.Service, removals []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if full {
		clear(p.table)
	}
	for _, s := range upserts {
		p.table[s.Addr] = s
	}
	for _, a := range removals {
		delete(p.table, a)
	}
}

func (p *player) receive(m wire.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m := m.(type) {
	case *wire.Refuse:
		p.refused[m.Service] = m.Reason
	case *wire.Images:
		for _, i := range m.Images {
			for _, r := range p.images {
				if r.Ref == i.Ref {
					p.client.Send(&wire.ImageReports{Images: []wire.ImageReport{r}})
				}
			}
		}
	case *wire.Backends:
		p.backends[m.Service] = m
		for _, b := range m.Pods {
			switch b.State {
			case wire.PodStarting:
				p.client.Send(&wire.Listening{Service: m.Service, PodID: b.PodID, At: monotime.Now()})
			case wire.PodDraining:
				p.client.Send(&wire.Quiet{
					Service: m.Service, PodID: b.PodID, Generation: m.Generation, LastPacket: monotime.Now(),
					OpenFlows: p.open,
				})
			}
		}
	}
}

// connected reports the running pods to a new leader.
func (p *player) connected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.running {
		p.seen(o, wangellruntime.PodNetworkReady)
		p.seen(o, wangellruntime.PodContainerStarted)
	}
}

func (p *player) seen(o *corev1.Pod, sight wangellruntime.PodEvent) {
	p.client.Send(&wire.PodReport{
		Event: uint8(sight), Service: o.Namespace + "/" + o.Labels[v1alpha1.LabelService],
		UID: string(o.UID), Name: o.Name,
		Container: o.Annotations[v1alpha1.AnnotationContainer], Addr: netip.MustParseAddr(o.Status.PodIP),
		Netns:    "/run/netns/" + o.Name,
		SpecHash: o.Labels[v1alpha1.LabelSpecHash], At: monotime.Now(),
	})
}

// opens sets how many connections a pod has when it is drained.
func (p *player) opens(n uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = n
}

// ends reports that a pod has no connection any more.
func (p *player) ends(a netip.AddrPort, pod uint64) {
	p.client.Send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: pod, LastPacket: monotime.Now()}}})
}

// syn reports a SYN that finds no pod.
func (p *player) syn(a netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	now := monotime.Now()
	p.client.Send(&wire.Wake{Service: a, Seq: p.seq, SYNSeen: now, Noticed: now, Parked: 1})
}

// has returns a service as the daemon has it, and whether it has it.
func (p *player) has(a netip.AddrPort) (wire.Service, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.table[a]
	return s, ok
}

// serving returns the number of serving pods of a service.
func (p *player) serving(a netip.AddrPort) int { return len(p.servingIDs(a)) }

// servingIDs returns the serving pods of a service.
func (p *player) servingIDs(a netip.AddrPort) []uint64 { return p.idsOf(a, wire.PodServing) }

// idsOf returns the pods of a service that are in a state.
func (p *player) idsOf(a netip.AddrPort, state wire.PodState) (ids []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.backends[a]; b != nil {
		for _, pod := range b.Pods {
			if pod.State == state {
				ids = append(ids, pod.PodID)
			}
		}
	}
	return ids
}

// play gives the Deployment of each service as many pods as it wants, and runs each.
func (p *player) play(ctx context.Context) {
	n := 0
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		var all appsv1.DeploymentList
		if p.w.client.List(ctx, &all, client.InNamespace(p.namespace), client.HasLabels{v1alpha1.LabelService}) != nil {
			continue
		}
		wanted := map[string]int{}
		for i := range all.Items {
			d := &all.Items[i]
			wanted[d.Name] = int(*d.Spec.Replicas)
		}
		var pods corev1.PodList
		if p.w.client.List(ctx, &pods, client.InNamespace(p.namespace),
			client.HasLabels{v1alpha1.LabelService}) != nil {
			continue
		}
		for i := range pods.Items {
			o := &pods.Items[i]
			name := o.Labels[v1alpha1.LabelService]
			if wanted[name]--; wanted[name] < 0 || o.DeletionTimestamp != nil {
				p.end(ctx, o)
			}
		}
		for i := range all.Items {
			for d := &all.Items[i]; wanted[d.Name] > 0; wanted[d.Name]-- {
				n++
				p.begin(ctx, d, n)
			}
		}
	}
}

func (p *player) begin(ctx context.Context, d *appsv1.Deployment, n int) {
	o := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
	o.Namespace, o.Name, o.Spec.NodeName = d.Namespace, fmt.Sprintf("%s-%d", d.Name, n), "node-1"
	if p.w.client.Create(ctx, o) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.broken {
	case "image":
		o.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: o.Spec.Containers[0].Name, Image: o.Spec.Containers[0].Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
				Message: "manifest unknown"}},
		}}}
	case "room":
		o.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
			Message: "0/1 nodes are available: 1 Insufficient cpu.",
		}}}
	default:
		o.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.%d.%d", n/200, n%200+1),
			HostIP: "192.0.2.1"}
		p.running[string(o.UID)] = o
		for _, s := range []wangellruntime.PodEvent{wangellruntime.PodNetworkReady, wangellruntime.PodContainerCreated,
			wangellruntime.PodContainerStarted} {
			p.seen(o, s)
		}
	}
	_ = p.w.client.Status().Update(ctx, o)
}

func (p *player) end(ctx context.Context, o *corev1.Pod) {
	p.mu.Lock()
	p.endProcess(string(o.UID))
	p.mu.Unlock()
	_ = p.w.client.Delete(ctx, o, client.GracePeriodSeconds(0))
}

// endProcess ends the process of a pod, if it runs. p.mu is held.
func (p *player) endProcess(uid string) {
	if running := p.running[uid]; running != nil {
		delete(p.running, uid)
		p.seen(running, wangellruntime.PodContainerExited)
		p.seen(running, wangellruntime.PodNetworkGone)
	}
}

// endAll ends the processes of all pods.
func (p *player) endAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.running {
		p.endProcess(uid)
	}
}

// vip waits until a service has its address and the daemon has the service.
func (w *world) vip(name string) netip.AddrPort {
	w.t.Helper()
	var a netip.AddrPort
	defer func() {
		if w.t.Failed() {
			w.t.Logf("%s: %+v", name, w.service(name).Status)
		}
	}()
	w.until(name+" has its address", func() bool {
		s := w.service(name)
		ip, err := netip.ParseAddr(s.Status.LoadBalancerIP)
		if err != nil {
			return false
		}
		a = netip.AddrPortFrom(ip, uint16(s.Spec.Port))
		known, ok := w.d.has(a)
		return ok && known.Name == w.namespace+"/"+name
	})
	return a
}

// hasAll reports whether a list has all words.
func hasAll(list []string, words ...string) bool {
	for _, word := range words {
		if !slices.Contains(list, word) {
			return false
		}
	}
	return true
}

func contains(s, part string) bool { return strings.Contains(s, part) }

// deleteOnlyPod deletes the pod of the namespace, which has no other.
func (w *world) deleteOnlyPod() {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), w.onlyPod()); err != nil {
		w.t.Fatal(err)
	}
}

// awaited is a log that calls a function at a message.
type awaited struct {
	message string
	call    func()
}

func (awaited) Enabled(context.Context, slog.Level) bool { return true }
func (a awaited) WithAttrs([]slog.Attr) slog.Handler     { return a }
func (a awaited) WithGroup(string) slog.Handler          { return a }
func (a awaited) Handle(_ context.Context, r slog.Record) error {
	if r.Message == a.message {
		a.call()
	}
	return nil
}
