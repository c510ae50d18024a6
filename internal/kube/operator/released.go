// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/backoff"
)

// maxReleased is how many addresses in quarantine are kept for the next leader, the latest ones: an object may have
// 1 MiB.
const maxReleased = 5000

// released keeps the addresses in quarantine for the next leader, in a ConfigMap: for each the service that had it, and
// until when.
type released struct {
	client kubernetes.Interface
	at     Name
	log    *slog.Logger
	r      *reconciler

	kept map[string]string // what the ConfigMap has
}

// load reads the ConfigMap. One that is missing is an error of the installation, without which addresses go into
// quarantine only until this leader ends.
func (s *released) load(ctx context.Context) (map[netip.Addr]formerly, error) {
	m, err := s.client.CoreV1().ConfigMaps(s.at.Namespace).Get(ctx, s.at.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		s.log.Warn("addresses of deleted services are not kept for the next leader: install the chart's ConfigMap",
			"error", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the addresses of deleted services: %w", err)
	}
	s.kept = m.Data
	left := map[netip.Addr]formerly{}
	for name, text := range m.Data {
		a, err := netip.ParseAddr(name)
		key, since, _ := strings.Cut(text, " ")
		at, err2 := time.Parse(time.RFC3339, since)
		if err == nil && err2 == nil {
			left[a] = formerly{v1alpha1.Key(key), at}
		}
	}
	return left, nil
}

// run writes changes until ctx ends.
func (s *released) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.r.book.changed:
		}
		var pause time.Duration
		for {
			err := s.write(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			s.log.Warn("cannot keep the addresses of deleted services for the next leader", "error", err)
			pause = backoff.Next(pause, time.Second, time.Minute)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
}

// write brings the ConfigMap up to date.
func (s *released) write(ctx context.Context) error {
	want := s.r.quarantined()
	changes := map[string]any{}
	for name := range s.kept {
		if _, stays := want[name]; !stays {
			changes[name] = nil
		}
	}
	for name, text := range want {
		if s.kept[name] != text {
			changes[name] = text
		}
	}
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": changes})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().ConfigMaps(s.at.Namespace).Patch(ctx, s.at.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", s.at, err)
	}
	s.kept = want
	return nil
}

// quarantined returns the addresses in quarantine, as the ConfigMap has them.
func (r *reconciler) quarantined() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	type entry struct {
		addr netip.Addr
		formerly
	}
	var all []entry
	for a, l := range r.book.left {
		if r.book.quarantines(l) {
			all = append(all, entry{a, l})
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Or(b.since.Compare(a.since), a.addr.Compare(b.addr)) })
	out := map[string]string{}
	for _, e := range all[:min(len(all), maxReleased)] {
		out[e.addr.String()] = string(e.key) + " " + e.since.UTC().Format(time.RFC3339)
	}
	return out
}
