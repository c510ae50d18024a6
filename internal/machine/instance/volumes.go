// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"log/slog"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/runtime/containerd"
)

// Volumes returns the persistent volumes in a state folder. runDir is the run folder of the instance that uses it,
// which knows the pods that hold them; another one is an error.
func Volumes(stateDir, runDir string) (*volume.Store, error) {
	if err := (Config{StateDir: stateDir, RunDir: runDir}).ownsState(); err != nil {
		return nil, err
	}
	return volume.NewStore(stateDir, containerd.PodsDir(runDir)), nil
}

// volumes removes the persistent volumes of services that are removed and do not retain them.
type volumes struct {
	remove  func(context.Context, volume.ID) error
	log     *slog.Logger
	applied []*v1alpha1.WangellService
}

// follow makes the services the given ones. A volume that another service uses stays.
func (v *volumes) follow(ctx context.Context, list []*v1alpha1.WangellService) {
	if v == nil {
		return
	}
	services, used := map[v1alpha1.Key]bool{}, map[volume.ID]bool{}
	for _, s := range list {
		services[v1alpha1.KeyOf(s)] = true
		for _, has := range s.Spec.PersistentVolumes() {
			used[volume.IDOf(s, has)] = true
		}
	}
	for _, s := range v.applied {
		if services[v1alpha1.KeyOf(s)] {
			continue
		}
		for _, has := range s.Spec.PersistentVolumes() {
			id := volume.IDOf(s, has)
			if !has.Persistent.Retained() && !used[id] {
				v.end(ctx, id, v1alpha1.KeyOf(s))
			}
		}
	}
	v.applied = list
}

func (v *volumes) end(ctx context.Context, id volume.ID, k v1alpha1.Key) {
	if err := v.remove(ctx, id); err != nil {
		v.log.Error("the volume of a removed service stays: remove it with 'wangell volume rm'", "error", err)
		return
	}
	v.log.Info("removed a volume with its service, as persistent.retain is false", "volume", id.String(),
		"service", string(k))
}
