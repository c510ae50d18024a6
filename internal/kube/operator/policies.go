// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/decide/netpol"
	"wangell.loutres.me/internal/decide/sources"
)

// policyPause is how long changes of policies, namespaces and pods are gathered before they are put in force.
const policyPause = 50 * time.Millisecond

// listPatience is how long the first list of pods and namespaces may take before the log says so.
const listPatience = 30 * time.Second

// enforcer passes the sources that the cluster's NetworkPolicies allow for each service to the controller. Pods and
// namespaces are watched once a policy selects some.
type enforcer struct {
	log        *slog.Logger
	controller interface {
		Put(controller.Service) error
		Restrict(v1alpha1.Key, *sources.Set, ...sources.Set) error
	}
	judged func(...v1alpha1.Key) // called when verdicts have changed; it must not block

	policies, pods, namespaces cache.SharedIndexInformer
	changed                    chan struct{} // holds one element: an object that policies depend on has changed
	ctx                        context.Context
	watchers                   sync.WaitGroup

	mu       sync.Mutex    // guards what follows, and makes changes of the controller's services take turns
	view     *netpol.View  // nil if it has to be built again
	ended    bool          // no further watcher begins
	listed   chan struct{} // closed once pods and namespaces are known; nil if they are not watched
	targets  map[v1alpha1.Key]netpol.Target
	verdicts map[v1alpha1.Key]netpol.Verdict
}

// newEnforcer begins to watch policies, and returns once the cache has synced or ctx has ended.
func newEnforcer(ctx context.Context, client kubernetes.Interface, namespace string, log *slog.Logger) (*enforcer,
	error) {
	all := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trimForPolicies))
	own := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTransform(trimForPolicies))
	e := &enforcer{
		log: log, ctx: ctx, changed: make(chan struct{}, 1),
		policies: own.Networking().V1().NetworkPolicies().Informer(),
		pods:     all.Core().V1().Pods().Informer(), namespaces: all.Core().V1().Namespaces().Informer(),
		targets: map[v1alpha1.Key]netpol.Target{}, verdicts: map[v1alpha1.Key]netpol.Verdict{},
	}
	for _, i := range []cache.SharedIndexInformer{e.policies, e.pods, e.namespaces} {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { e.outdate() },
			UpdateFunc: func(was, is any) {
				if !reflect.DeepEqual(forPolicies(was), forPolicies(is)) {
					e.outdate()
				}
			},
			DeleteFunc: func(any) { e.outdate() },
		})
		if err != nil {
			return nil, fmt.Errorf("watch NetworkPolicies: %w", err)
		}
	}
	e.watchers.Go(func() { e.policies.Run(ctx.Done()) })
	if !cache.WaitForCacheSync(ctx.Done(), e.policies.HasSynced) {
		return nil, ctx.Err()
	}
	return e, nil
}

// outdate makes run judge again.
func (e *enforcer) outdate() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// run puts changes in force until the context of newEnforcer ends.
func (e *enforcer) run() {
	defer func() {
		e.mu.Lock()
		e.ended = true
		e.mu.Unlock()
		e.watchers.Wait()
	}()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.changed:
		}
		select {
		case <-e.ctx.Done():
			return
		case <-time.After(policyPause):
		}
		e.judgeAll()
	}
}

// judgeAll judges all services again, and passes on changed verdicts. Until the pods and namespaces on which a
// verdict depends are known, the previous one stays in force.
func (e *enforcer) judgeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.view = nil
	var changed []v1alpha1.Key
	for key, target := range e.targets {
		was := e.verdicts[key]
		is, known := e.judge(target)
		if !known || is.Equal(&was) {
			continue
		}
		e.verdicts[key] = is
		changed = append(changed, key)
		first, further := policiesOf(is)
		if err := e.controller.Restrict(key, first, further...); err != nil {
			e.log.Error("cannot put NetworkPolicies in force", "service", string(key), "error", err)
		}
	}
	e.judged(changed...)
}

// put passes a service to the controller, with the verdict of the policies. It waits until the pods and namespaces on
// which that depends are known: a guess could cut off clients, or admit others.
func (e *enforcer) put(key v1alpha1.Key, s controller.Service) error {
	target := targetOf(s.Spec)
	e.mu.Lock()
	defer e.mu.Unlock()
	verdict, known := e.judge(target)
	for !known {
		listed := e.listed
		e.mu.Unlock()
		select {
		case <-listed:
		case <-e.ctx.Done():
		}
		e.mu.Lock()
		if err := e.ctx.Err(); err != nil {
			return fmt.Errorf("service %s: judge NetworkPolicies: list pods and namespaces: %w", key, err)
		}
		verdict, known = e.judge(target)
	}
	s.Policy, s.PortPolicies = policiesOf(verdict)
	if err := e.controller.Put(s); err != nil {
		return err
	}
	was := e.verdicts[key]
	e.targets[key], e.verdicts[key] = target, verdict
	if !verdict.Equal(&was) {
		e.judged(key) // services that route requests to it have its restrictions
	}
	return nil
}

// forget removes a service.
func (e *enforcer) forget(key v1alpha1.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.targets, key)
	delete(e.verdicts, key)
}

// verdict returns the verdict of the policies on a service that was put.
func (e *enforcer) verdict(key v1alpha1.Key) netpol.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.verdicts[key]
}

// judge judges a target; known is false if that depends on pods and namespaces that are not known, yet or any longer.
// The lock is held.
func (e *enforcer) judge(t netpol.Target) (v netpol.Verdict, known bool) {
	if e.view == nil {
		e.view = e.look()
	}
	v = e.view.Judge(t)
	if !v.Selects {
		return v, true
	}
	if e.listed == nil {
		e.listed = make(chan struct{})
		if !e.ended { // else run does not wait for more watchers
			e.watch()
		}
	}
	select {
	case <-e.listed:
		return v, true
	default:
		return v, false
	}
}

// watch begins to watch pods and namespaces. The lock is held.
func (e *enforcer) watch() {
	e.log.Info("a NetworkPolicy selects pods: watching pods and namespaces")
	for _, i := range []cache.SharedIndexInformer{e.pods, e.namespaces} {
		e.watchers.Go(func() { i.Run(e.ctx.Done()) })
	}
	late := time.AfterFunc(listPatience, func() {
		e.log.Warn("pods and namespaces are not known yet: changes of NetworkPolicies that select them wait until they are")
	})
	e.watchers.Go(func() {
		defer late.Stop()
		if !cache.WaitForCacheSync(e.ctx.Done(), e.pods.HasSynced, e.namespaces.HasSynced) {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.view = nil // it was built without them
		close(e.listed)
		e.outdate()
	})
}

// look builds the input of policies from the watched objects.
func (e *enforcer) look() *netpol.View {
	v := &netpol.View{
		Policies: map[string][]netpol.Policy{}, Namespaces: map[string]labels.Set{}, Pods: map[string][]netpol.Pod{},
	}
	for _, o := range e.policies.GetStore().List() {
		p := o.(*networkingv1.NetworkPolicy)
		if prepared, ok := netpol.Prepare(p); ok {
			v.Policies[p.Namespace] = append(v.Policies[p.Namespace], prepared)
		}
	}
	for _, o := range e.namespaces.GetStore().List() {
		n := o.(*corev1.Namespace)
		v.Namespaces[n.Name] = n.Labels
	}
	for _, o := range e.pods.GetStore().List() {
		p := o.(*corev1.Pod)
		if addrs := clientAddrs(p); len(addrs) > 0 {
			v.Pods[p.Namespace] = append(v.Pods[p.Namespace], netpol.Pod{Labels: p.Labels, Addrs: addrs})
		}
	}
	return v
}

// policiesOf returns the sources that a verdict allows to connect to the first port of a service and to each further
// one; nil if it allows all.
func policiesOf(v netpol.Verdict) (first *sources.Set, further []sources.Set) {
	if !v.Restricted {
		return nil, nil
	}
	return &v.Allowed, v.More
}

// targetOf returns the pods of a service as policies see them.
func targetOf(s *v1alpha1.WangellService) netpol.Target {
	spec := s.DeepCopy()
	v1alpha1.Default(spec)
	template := podTemplateOf(spec)
	t := netpol.Target{Namespace: s.Namespace, Labels: template.Labels}
	for i, p := range spec.Spec.PortList() {
		port := netpol.Port{Number: p.Target, Names: namesOf(template.Spec.Containers, p.Target)}
		if i == 0 {
			t.Port, t.PortNames = port.Number, port.Names
		} else {
			t.More = append(t.More, port)
		}
	}
	return t
}

// namesOf returns the names that containers give a TCP port.
func namesOf(containers []corev1.Container, number int32) (names []string) {
	for _, c := range containers {
		for _, p := range c.Ports {
			if p.Name != "" && p.ContainerPort == number && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}
