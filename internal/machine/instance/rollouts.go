// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
)

// rolloutFile is the file in the state folder with the traffic that users have moved.
const rolloutFile = "rollouts.json"

// rollouts is the traffic that users have moved among the revisions of services. It overrides the traffic of the
// manifest until that is changed.
type rollouts struct {
	path  string
	moved map[v1alpha1.Key]rollout
}

// rollout is the traffic of a service.
type rollout struct {
	// Manifest is the traffic in the manifest at that time.
	Manifest []v1alpha1.Revision `json:"manifest"`
	Traffic  []v1alpha1.Revision `json:"traffic"`
	At       time.Time           `json:"at"`
}

// loadRollouts reads the file of a state folder.
func loadRollouts(dir string) (*rollouts, error) {
	r := &rollouts{path: filepath.Join(dir, rolloutFile), moved: map[v1alpha1.Key]rollout{}}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r.moved)
	}
	if err != nil {
		return nil, fmt.Errorf("traffic of services: %s: %w: remove the file, so that the manifests count", r.path, err)
	}
	return r, nil
}

// save writes the file, completely or not at all.
func (r *rollouts) save() error {
	data, err := json.MarshalIndent(r.moved, "", "  ")
	if err == nil {
		err = atomicfile.Write(r.path, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("traffic of services: %w", err)
	}
	return nil
}

// over returns services of manifests with the traffic that users have set.
func (r *rollouts) over(list []*v1alpha1.WangellService) []*v1alpha1.WangellService {
	out := slices.Clone(list)
	for i, s := range list {
		if m, ok := r.moved[v1alpha1.KeyOf(s)]; ok && slices.Equal(m.Manifest, s.Spec.Traffic) {
			out[i] = s.DeepCopy()
			out[i].Spec.Traffic = m.Traffic
		}
	}
	return out
}

// forget forgets the traffic of services whose manifests have different traffic, or are gone. It reports whether
// there was one.
func (r *rollouts) forget(list []*v1alpha1.WangellService) bool {
	kept := map[v1alpha1.Key]rollout{}
	for _, s := range list {
		if m, ok := r.moved[v1alpha1.KeyOf(s)]; ok && slices.Equal(m.Manifest, s.Spec.Traffic) {
			kept[v1alpha1.KeyOf(s)] = m
		}
	}
	gone := len(kept) < len(r.moved)
	r.moved = kept
	return gone
}

// with returns rollouts in which one service has other traffic.
func (r *rollouts) with(key v1alpha1.Key, m rollout) *rollouts {
	moved := maps.Clone(r.moved)
	moved[key] = m
	if slices.Equal(m.Manifest, m.Traffic) {
		delete(moved, key)
	}
	return &rollouts{path: r.path, moved: moved}
}
