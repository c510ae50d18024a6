// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// Logs implements runtime.Runtime: first with the logs that are kept of the service's last pods, then with the log
// endpoint of the API server. Tail counts lines for each pod that exists, and for the others together.
func (r *Runtime) Logs(ctx context.Context, k v1alpha1.Key, w io.Writer, options runtime.LogOptions) error {
	if _, err := io.WriteString(w, r.keptLog(k, options)); err != nil {
		return err
	}
	shared := &lineWriter{w: w}
	if !options.Follow {
		for _, p := range r.podsOf(k) {
			if err := r.copyLog(ctx, p, shared, options); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var readers sync.WaitGroup
	defer readers.Wait()
	followed := map[*pod]bool{}
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		for _, p := range r.podsOf(k) {
			if followed[p] {
				continue
			}
			followed[p] = true
			of := options
			readers.Go(func() {
				if err := r.copyLog(ctx, p, shared, of); err != nil {
					r.log.Debug(err.Error())
				}
			})
		}
		options.Tail = -1 // of pods that come later, everything
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// keptLog returns what is kept of the logs of a service's last pods. Of a pod that still runs, kubelet has more.
func (r *Runtime) keptLog(k v1alpha1.Key, options runtime.LogOptions) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	container := options.Container
	if s := r.services[k]; s != nil && container == "" {
		container = s.container
	}
	return r.ended.text(k, container, options.Tail, func(uid string) bool {
		p := r.byUID[uid]
		return p != nil && !p.over()
	})
}

// kept reports whether the log of a container is kept and complete, so that kubelet need not be asked.
func (r *Runtime) kept(p *pod, container string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, found := r.ended.container(p.rt.ID, container)
	return found && p.over()
}

func (r *Runtime) copyLog(ctx context.Context, p *pod, w io.Writer, options runtime.LogOptions) error {
	s := p.service
	options.Container = cmp.Or(options.Container, p.container)
	if r.kept(p, options.Container) {
		return nil
	}
	if err := r.api.copyLog(ctx, s.namespace, p.name, w, options); err != nil {
		return fmt.Errorf("service %s: %w", s.key, err)
	}
	return nil
}

// podsOf returns the pods of a service, by name.
func (r *Runtime) podsOf(k v1alpha1.Key) []*pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*pod
	if s := r.services[k]; s != nil {
		for _, p := range s.pods {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *pod) int { return strings.Compare(a.name, b.name) })
	return out
}
