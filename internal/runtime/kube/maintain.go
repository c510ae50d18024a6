// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// Maintenance is tried again after a pause that doubles between these bounds.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// lastResizeRetry is the longest pause between attempts to give a pod its requests back, which a quota, for
	// example, may refuse.
	lastResizeRetry = 30 * time.Second
)

// maintain carries out due sequences of services until Close: it hands pods over, brings Deployments to rest, and
// writes numbers that no call writes. Services do not wait for each other.
func (r *Runtime) maintain() {
	for {
		key, closed := r.due.Get()
		if closed {
			return
		}
		r.workers.Go(func() {
			defer r.due.Done(key)
			r.maintainService(key)
		})
	}
}

func (r *Runtime) maintainService(key v1alpha1.Key) {
	r.mu.Lock()
	s := r.services[key]
	early := s != nil && time.Now().Before(s.notBefore)
	if early {
		r.schedule(s)
	}
	r.mu.Unlock()
	if s == nil || early {
		return
	}
	err := r.drive(r.ctx, s, sequenceDue)
	if err != nil && r.api.writes.Err() == nil {
		r.log.Warn(err.Error(), "service", string(key), "tries", r.backoff.NumRequeues(key))
	}
}
