// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/machine/volume"
)

func TestVolumesGoWithTheirServiceOnlyIfAsked(t *testing.T) {
	var removed []string
	v := &volumes{log: slog.New(slog.DiscardHandler), remove: func(_ context.Context, id volume.ID) error {
		removed = append(removed, id.String())
		return nil
	}}
	keep, remove := true, false
	list := wants("kept", "asked", "default", "common-a", "common-b")
	for i, p := range []v1alpha1.PersistentVolume{
		{Retain: &keep}, {Retain: &remove}, {}, {Retain: &remove, Name: "common", Shared: true},
		{Retain: &remove, Name: "common", Shared: true},
	} {
		list[i].Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data"})
		list[i].Spec.Volumes[0].Persistent = &p
	}
	for _, step := range []struct {
		list []*v1alpha1.WangellService
		want string
	}{
		{list, ""}, {list[4:], "default/asked.data"}, {nil, "default/asked.data default/common"},
	} {
		v.follow(t.Context(), step.list)
		if got := strings.Join(removed, " "); got != step.want {
			t.Errorf("removed %q, want %q", got, step.want)
		}
	}
}
