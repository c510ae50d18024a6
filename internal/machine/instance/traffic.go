// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/show/httpapi"
)

// setTraffic moves the traffic of a service among its revisions, if it is still the traffic that the user saw. It
// outlives this process, and lasts until the traffic in the service's manifest changes.
func (a *services) setTraffic(ctx context.Context, key v1alpha1.Key, from, to []v1alpha1.Revision) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.given, func(s *v1alpha1.WangellService) bool { return v1alpha1.KeyOf(s) == key })
	if i < 0 {
		return fmt.Errorf("service %s: %w", key, runtime.ErrNotFound)
	}
	manifest := a.given[i]
	now := a.rollouts.over(a.given)[i].DeepCopy()
	if !slices.Equal(now.Spec.Traffic, from) {
		return httpapi.Conflict("service %s: its traffic has changed meanwhile: try again", key)
	}
	if !sameRevisions(manifest.Spec.Traffic, to) {
		return httpapi.Conflict("service %s: a rollout moves traffic among the revisions of the manifest: change "+
			"spec.traffic there", key)
	}
	now.Spec.Traffic = to
	if errs := v1alpha1.Validate(now); len(errs) > 0 {
		return httpapi.Conflict("service %s: %w", key, errs)
	}
	before := a.rollouts
	a.rollouts = before.with(key, rollout{Manifest: manifest.Spec.Traffic, Traffic: to, At: time.Now()})
	err := a.rollouts.save()
	if err == nil {
		err = a.applyGiven(ctx)
	}
	if err != nil {
		a.rollouts = before
		return errors.Join(err, before.save())
	}
	return nil
}

// sameRevisions reports whether two lists of revisions differ at most in their percentages.
func sameRevisions(a, b []v1alpha1.Revision) bool {
	return slices.EqualFunc(a, b, func(x, y v1alpha1.Revision) bool { return x.Revision == y.Revision && x.Tag == y.Tag })
}

// SetTraffic implements httpapi.Splitter.
func (l local) SetTraffic(ctx context.Context, key v1alpha1.Key, from, to []v1alpha1.Revision) error {
	return l.services.setTraffic(ctx, key, from, to)
}
