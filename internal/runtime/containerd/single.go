// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// aloneEvery is the pause between two looks at the pods that must be gone before another one starts.
const aloneEvery = 20 * time.Millisecond

// awaitAlone waits until nothing is left of the service's pods if its strategy is Recreate, for example because two
// at once could write to one volume. It also removes the remains of failed starts, because the keeper waits for
// starts to end.
func (r *Runtime) awaitAlone(ctx context.Context, s *v1alpha1.WangellService) error {
	if s.Spec.Strategy() != v1alpha1.UpdateRecreate {
		return nil
	}
	for {
		id, remains := r.podOf(v1alpha1.KeyOf(s))
		if id == "" {
			return nil
		}
		var err error
		if remains {
			if err = r.purge(ctx, id); err == nil {
				r.mu.Lock()
				delete(r.garbage, id)
				r.mu.Unlock()
				continue
			}
		}
		select {
		case <-ctx.Done():
			return r.notAlone(s, id, errors.Join(ctx.Err(), err))
		case <-time.After(aloneEvery):
		}
	}
}

// podOf returns a pod of a service, and whether it is the remains of a failed start; no pod if there is none.
func (r *Runtime) podOf(k v1alpha1.Key) (id string, remains bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.pods {
		if p.Service == k {
			return id, r.garbage[id]
		}
	}
	return "", false
}

// add registers a pod. It refuses one that must not run beside another.
func (r *Runtime) add(s *v1alpha1.WangellService, p *pod) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Spec.Strategy() == v1alpha1.UpdateRecreate {
		for id, other := range r.pods {
			if other.Service == p.Service {
				return r.notAlone(s, id, runtime.ErrUnavailable)
			}
		}
	}
	r.pods[p.ID] = p
	return nil
}

func (r *Runtime) notAlone(s *v1alpha1.WangellService, id string, err error) error {
	volume := s.Spec.SharedVolume()
	if volume == "" {
		return fmt.Errorf("pod %s may still run, and updateStrategy is Recreate: %w", id, err)
	}
	return fmt.Errorf("pod %s may still write volume %q: %w", id, volume, err)
}
