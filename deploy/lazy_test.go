// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
)

func TestLazyPullsAreOffByDefault(t *testing.T) {
	r := render(t)
	args := r.controller.Spec.Template.Spec.Containers[0].Args
	if len(r.classes) > 0 || r.lazy.Name != "" || slices.Contains(args, "--lazy") {
		t.Errorf("%v", r.kinds)
	}
}

// The pods of the RuntimeClass run where the snapshotter does, which an upgrade leaves running, and whose mounts reach
// the node.
func TestLazyPullsHaveASnapshotterThatUpgradesLeaveAlone(t *testing.T) {
	r := render(t, "--set", "lazy.enabled=true")
	if len(r.classes) != 1 || !slices.Contains(r.controller.Spec.Template.Spec.Containers[0].Args, "--lazy") {
		t.Fatalf("%v", r.kinds)
	}
	class, spec := r.classes[0], r.lazy.Spec.Template.Spec
	if class.Name != v1alpha1.LazyRuntime || class.Handler != v1alpha1.LazyRuntime ||
		!maps.Equal(class.Scheduling.NodeSelector, map[string]string{v1alpha1.LabelLazy: "true"}) ||
		spec.NodeSelector[v1alpha1.LabelLazy] != "true" {
		t.Errorf("class %+v; the snapshotter runs on %v", class, spec.NodeSelector)
	}
	c := spec.Containers[0]
	if r.lazy.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType || c.LivenessProbe != nil ||
		!slices.Equal(spec.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) ||
		spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken || !spec.HostNetwork || spec.HostPID {
		t.Errorf("%+v", r.lazy.Spec)
	}
	want := map[string]string{
		"/var/lib/wangell-lazy": "Bidirectional", "/run/wangell-lazy": "", "/etc/containerd/certs.d": "read-only",
		"/run/containerd": "read-only HostToContainer",
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		is := ""
		if m.ReadOnly {
			is = "read-only "
		}
		if m.MountPropagation != nil {
			is += string(*m.MountPropagation)
		}
		if path := spec.Volumes[i].HostPath.Path; path != m.MountPath || strings.TrimSpace(is) != want[path] {
			t.Errorf("the node's folder %s is mounted as %+v", path, m)
		}
		delete(want, m.MountPath)
	}
	if len(want) > 0 {
		t.Errorf("not mounted: %v", want)
	}
	with := render(t, "--set", "lazy.enabled=true,lazy.registrySecret=login").lazy.Spec.Template.Spec
	if s := with.Volumes[len(with.Volumes)-1].Secret; s == nil || s.SecretName != "login" {
		t.Errorf("%+v", with.Volumes)
	}
}

// Daemons send parts of the snapshotter's layers to other nodes if they share images.
func TestDaemonsShareTheSnapshottersLayers(t *testing.T) {
	const flag = "--peers-layers=/var/lib/wangell-lazy/blobs"
	for _, on := range []bool{false, true} {
		spec := render(t, "--set", fmt.Sprintf("lazy.enabled=true,daemon.peers.enabled=%v", on)).daemon.Spec.Template.Spec
		if slices.Contains(spec.Containers[0].Args, flag) != on {
			t.Errorf("daemon.peers.enabled=%v: %v", on, spec.Containers[0].Args)
		}
	}
}

// Daemons reach the snapshotter's socket only where there may be one.
func TestDaemonsWatchTheSnapshotter(t *testing.T) {
	const flag, path = "--lazy-socket=/run/wangell-lazy/lazy.sock", "/run/wangell-lazy"
	for _, on := range []bool{false, true} {
		spec := render(t, "--set", fmt.Sprint("lazy.enabled=", on)).daemon.Spec.Template.Spec
		mounted := slices.ContainsFunc(spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == path && m.ReadOnly
		})
		if slices.Contains(spec.Containers[0].Args, flag) != on || mounted != on {
			t.Errorf("lazy.enabled=%v: %v, %v", on, spec.Containers[0].Args, spec.Containers[0].VolumeMounts)
		}
	}
}
