// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// unknown is a number of replicas that nobody knows: a request to write it was not answered.
const unknown = -1

// service is what is known of a service's Deployment.
type service struct {
	key             runtime.Key
	namespace, name string
	container       string // name of the main container; empty if not known
	want            int32  // how many replicas the Deployment shall have
	unmarked        int32  // how many fewer want is than may be written yet: pods that are not yet marked as those that go
	written         int32  // how many it has, or how many direct pods there are, as far as is known; unknown: write it anew
	version         uint64 // of the Deployment, when written was read
	uid             string // of the Deployment
	starts          []*start
	pods            map[string]*pod
	troubled        trouble       // as last told
	sending         bool          // the number is on its way to the Deployment
	writing         chan struct{} // has an element while requests for the number are under way
	settling        bool          // a goroutine writes what could not be written
	direct          *direct       // its direct pods; nil if it has none
	tidying         bool          // a goroutine does its chores
	changed         chan struct{} // has an element if that is to look anew at what they are
}

// of returns the service with this key. The lock is held.
func (r *Runtime) of(key runtime.Key, namespace, name string) *service {
	s := r.services[key]
	if s == nil {
		s = &service{key: key, namespace: namespace, name: name, written: unknown, pods: map[string]*pod{}, writing: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
		r.services[key] = s
	}
	return s
}

// claimed is how many pods of the service somebody has been given that stay.
func (s *service) claimed() int {
	n := 0
	for _, p := range s.pods {
		if p.stays() && p.claimed {
			n++
		}
	}
	return n
}

// wantMore makes room for one more Start. A pod that is wanted already and was given to nobody is enough: the one that
// replaces a pod that was taken away, or that which a controller before this one asked for.
func (s *service) wantMore() {
	if int(s.want)-s.claimed()-len(s.starts) < 1 {
		s.want++
	}
}

// wantLess takes back what a pod or a waiting Start stood for, before either is removed here. While a rollout has more
// pods than are wanted, the Deployment takes one away by itself. It reports whether the number changed.
func (s *service) wantLess() bool {
	if s.claimed()+len(s.starts) > int(s.want) || s.want == 0 {
		return false
	}
	s.want--
	return true
}

// number is how many replicas may be written now.
func (s *service) number() int32 { return s.want + s.unmarked }

// rolling tells whether the Deployment is replacing pods: those that stay are of several templates.
func (s *service) rolling() bool {
	template := ""
	for _, p := range s.pods {
		switch {
		case !p.stays() || p.template == "" || p.template == template:
		case template != "":
			return true
		default:
			template = p.template
		}
	}
	return false
}

// Rolling implements runtime.Cluster.
func (r *Runtime) Rolling(k runtime.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[k]
	return s != nil && s.rolling()
}

// write brings the number of replicas to the API server: to the Deployment, or as direct pods. Calls of one service take
// turns, and one whose number was written by the call before it has nothing to do.
func (r *Runtime) write(ctx context.Context, s *service) error {
	end, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	r.mu.Lock()
	want := s.number()
	if want == s.written {
		r.mu.Unlock()
		return nil
	}
	if s.direct == nil && want > 0 {
		s.direct = r.beginDirect(s)
	}
	dir := s.direct
	s.written, s.sending = unknown, true
	r.mu.Unlock()
	if dir != nil {
		err = r.writeDirect(ctx, s, dir, want)
	} else {
		err = r.writeReplicas(ctx, s, want)
	}
	r.mu.Lock()
	s.sending = false
	r.tidy(s)
	r.mu.Unlock()
	return err
}

// turn waits for the caller's turn to change what the API server has of a service, and returns what ends it.
func (s *service) turn(ctx context.Context) (end func(), err error) {
	select {
	case s.writing <- struct{}{}:
		return func() { <-s.writing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// writeReplicas has the Deployment want so many pods.
func (r *Runtime) writeReplicas(ctx context.Context, s *service, want int32) error {
	version, err := r.send(ctx, s, want)
	if err != nil {
		return err
	}
	r.mu.Lock()
	s.written, s.version = want, max(s.version, version)
	r.mu.Unlock()
	return nil
}

// send writes the number of replicas of a Deployment, and returns the version that this made.
func (r *Runtime) send(ctx context.Context, s *service, want int32) (version uint64, err error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	scale, err := r.cfg.Client.AppsV1().Deployments(s.namespace).UpdateScale(ctx, s.name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name},
		Spec:       autoscalingv1.ScaleSpec{Replicas: want},
	}, metav1.UpdateOptions{})
	r.log.Debug("replicas written", "service", string(s.key), "replicas", want, "took", time.Since(begin), "error", err)
	if err != nil {
		return 0, r.apiError(s.key, fmt.Sprintf("write replicas %d of Deployment %s", want, s.name), err)
	}
	return parseVersion(scale.ResourceVersion), nil
}

// apiError says what a request was for, and whether to try it again makes sense.
func (r *Runtime) apiError(k runtime.Key, doing string, err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("service %s: %s: %w", k, doing, err)
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return fmt.Errorf("service %s: %s: %w: check the controller's ClusterRole", k, doing, err)
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return fmt.Errorf("service %s: %s: %w", k, doing, err)
	}
	// Not found, too: the operator makes the Deployment again.
	return fmt.Errorf("service %s: %s: %w: %w", k, doing, runtime.ErrUnavailable, err)
}

// settle writes the number of replicas until it is written, in the background.
func (r *Runtime) settle(s *service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.settling || r.closed || s.written == s.number() {
		return
	}
	s.settling = true
	r.workers.Go(func() {
		for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
			r.mu.Lock()
			if s.written == s.number() || s.uid == "" {
				s.settling = false // without a Deployment there is nothing to write; the next one is told of by a watch
				r.mu.Unlock()
				return
			}
			r.mu.Unlock()
			if err := r.write(r.ctx, s); err == nil {
				continue
			} else if r.ctx.Err() == nil {
				r.log.Warn(err.Error(), "service", string(s.key), "again in", pause)
			}
			select {
			case <-time.After(pause):
			case <-r.ctx.Done():
				return
			}
		}
	})
}

// parseVersion reads a resource version, which orders the states of an object; 0 if it cannot be read.
func parseVersion(v string) uint64 {
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// deploymentSeen takes a Deployment as the API server has it.
func (r *Runtime) deploymentSeen(d *appsv1.Deployment) {
	key := runtime.Key(d.Namespace + "/" + d.Labels[v1alpha1.LabelService])
	if d.Labels[v1alpha1.LabelService] != d.Name {
		return // somebody else's, with our label
	}
	r.mu.Lock()
	s := r.of(key, d.Namespace, d.Name)
	s.container = d.Spec.Template.Annotations[v1alpha1.AnnotationContainer]
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	s.observe(string(d.UID), parseVersion(d.ResourceVersion), replicas)
	r.touch()
	r.tidy(s)
	r.mu.Unlock()
	r.settle(s)
}

// observe takes the number of replicas that a version of the Deployment has. Older versions than what was written here,
// and all that come while a number is on its way, tell nothing.
func (s *service) observe(uid string, version uint64, replicas int32) {
	if s.sending && s.uid == uid || version < s.version && version != 0 {
		return
	}
	if s.direct != nil && replicas == 0 {
		s.uid, s.version = uid, version // it does not know of them
		return
	}
	// What shall be is ours to say: it only did not get through yet, or is about to be written.
	pending := s.uid == uid && (s.written != s.want || s.unmarked > 0)
	same := s.uid == uid && s.written == replicas
	s.uid, s.version, s.written = uid, version, replicas
	if pending || same {
		return
	}
	s.want = replicas
	// Somebody made the Deployment anew or scaled it: those who wait for a pod still do.
	if n := len(s.starts); n > 0 {
		s.want = max(replicas, int32(s.claimed()+n))
	}
}

func (r *Runtime) deploymentDeleted(d *appsv1.Deployment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[runtime.Key(d.Namespace+"/"+d.Name)]
	if s == nil || s.uid != string(d.UID) {
		return
	}
	s.uid, s.want, s.written, s.version, s.direct = "", 0, unknown, 0, nil
	r.dropService(s)
}

// dropService forgets a service of which there is nothing. The lock is held.
func (r *Runtime) dropService(s *service) {
	if s.uid == "" && len(s.pods) == 0 && len(s.starts) == 0 && !s.settling && !s.tidying {
		delete(r.services, s.key)
	}
}
