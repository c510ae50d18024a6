// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime/kube"
)

// claimPatience bounds the wait for the first list of PersistentVolumeClaims. Without the list, each claim counts as
// a volume for one writer.
const claimPatience = 10 * time.Second

// claims decides the update strategies of services by the access modes of their PersistentVolumeClaims. Claims are
// watched once the strategy of a service depends on one.
type claims struct {
	log      *slog.Logger
	changed  func(...v1alpha1.Key) // called when strategies of services may have changed; it must not block
	informer cache.SharedIndexInformer
	ctx      context.Context
	needed   chan struct{} // closed when the first claim is needed
	begin    func()        // closes it and awaits the claims, once

	mu    sync.Mutex                // guards users
	users map[v1alpha1.Key][]string // of each service, the claims on which its strategy depends: "namespace/name"
}

// newClaims returns claims of a namespace, or of all if it is empty. They are watched until ctx ends.
func newClaims(ctx context.Context, client kubernetes.Interface, namespace string, log *slog.Logger,
	changed func(...v1alpha1.Key)) (*claims, error) {
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTransform(trimClaim))
	c := &claims{log: log, changed: changed, informer: f.Core().V1().PersistentVolumeClaims().Informer(), ctx: ctx,
		users: map[v1alpha1.Key][]string{}, needed: make(chan struct{})}
	c.begin = sync.OnceFunc(c.await)
	_, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.tell,
		UpdateFunc: func(was, is any) {
			if !reflect.DeepEqual(modesOf(was), modesOf(is)) {
				c.tell(is)
			}
		},
		DeleteFunc: c.tell,
	})
	if err != nil {
		return nil, fmt.Errorf("watch PersistentVolumeClaims: %w", err)
	}
	return c, nil
}

// run watches claims once one is needed, until the context of newClaims ends.
func (c *claims) run() {
	select {
	case <-c.ctx.Done():
	case <-c.needed:
		c.log.Info("the updateStrategy of a service depends on a PersistentVolumeClaim: watching them")
		c.informer.Run(c.ctx.Done())
	}
}

// tell notifies dependent services of a changed claim.
func (c *claims) tell(o any) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, names := range c.users {
		if slices.Contains(names, name) {
			c.changed(key)
		}
	}
}

// decide decides the strategy of a service. The first decision that depends on a claim waits for the list of claims.
func (c *claims) decide(key v1alpha1.Key, s *v1alpha1.WangellService) v1alpha1.StrategyDecision {
	var names []string
	for _, name := range s.Spec.Claims() {
		names = append(names, s.Namespace+"/"+name)
	}
	c.mu.Lock()
	if len(names) == 0 {
		delete(c.users, key)
	} else {
		c.users[key] = names // before the lookup, so that later changes notify
	}
	c.mu.Unlock()
	if len(names) > 0 {
		c.begin()
	}
	return s.Spec.Decide(func(name string) []corev1.PersistentVolumeAccessMode {
		o, _, _ := c.informer.GetStore().GetByKey(s.Namespace + "/" + name)
		return modesOf(o)
	})
}

// await makes run watch claims, and waits for them for a while.
func (c *claims) await() {
	close(c.needed)
	ctx, cancel := context.WithTimeout(c.ctx, claimPatience)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced) && c.ctx.Err() == nil {
		c.log.Error("PersistentVolumeClaims are not known yet, and count as ReadWriteOnce until they are: " +
			"check that the controller may list and watch them")
	}
}

// forget removes a service.
func (c *claims) forget(key v1alpha1.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users, key)
}

// modesOf returns the access modes of a claim; none for any other object.
func modesOf(o any) []corev1.PersistentVolumeAccessMode {
	if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
		return claim.Spec.AccessModes
	}
	return nil
}

// trimClaim drops unused fields before a claim is cached.
func trimClaim(o any) (any, error) {
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion},
			Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: c.Spec.AccessModes},
		}, nil
	}
	return o, nil
}

// writerCondition states whether pods of a service may run at the same time, and why.
func writerCondition(out outcome) metav1.Condition {
	const name = v1alpha1.ConditionSingleWriter
	d := out.strategy
	if d.Strategy == "" {
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	}
	message := fmt.Sprintf("updateStrategy is %s", d.Strategy)
	if d.Message != "" {
		message += ": " + d.Message
	}
	return condition(name, d.Strategy == v1alpha1.UpdateRecreate, d.Reason, message)
}
