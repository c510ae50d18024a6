// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// guests adds the services that share the network of this one as containers of its pods.
func (t *translation) guests() {
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		service := t.project.Services[name]
		if hostOf(&service) != t.service.Name {
			continue
		}
		g := &translation{project: t.project, service: &service, options: t.options}
		if c := g.container(name); c != nil {
			t.addContainer(*c, g.spec.Volumes)
		}
		t.notes = append(t.notes, g.notes...)
	}
}

// container translates the service to a container of the pod whose network it shares; nil if that is not possible.
func (t *translation) container(name string) *v1alpha1.Container {
	if t.service.Image == "" {
		t.lost("build", "the container is left out: build its image with another tool, load it with "+
			"'wangell image load', and name it with image")
		return nil
	}
	t.program()
	t.limits()
	t.volumes()
	t.secrets()
	t.rest()
	t.note([]unused{
		{"init", t.spec.Init != nil, "it is for the main container of a pod"},
		{"stop_signal", t.spec.StopSignal != "", "the signal of the image is used"},
		{"stop_grace_period", t.spec.TerminationGracePeriodSeconds != nil, "it is that of " + hostOf(t.service)},
		{"ports", len(t.service.Ports) > 0, "only the port of " + hostOf(t.service) + " is served"},
		{"healthcheck", t.service.HealthCheck != nil && !t.service.HealthCheck.Disable,
			"only the main container of a pod is probed"},
	})
	t.assumed("network_mode", "becomes a container of %s, in the same pod", hostOf(t.service))
	c := t.spec.Main(label(name))
	c.Image = t.service.Image
	return &c
}

// addContainer adds a container with its volumes. A named volume that the pod has already is not added again.
func (t *translation) addContainer(c v1alpha1.Container, volumes []v1alpha1.Volume) {
	names := map[string]string{}
	for _, v := range volumes {
		same := slices.IndexFunc(t.spec.Volumes, func(o v1alpha1.Volume) bool {
			return v.Persistent != nil && o.Persistent != nil && o.Persistent.Name == v.Persistent.Name
		})
		if same >= 0 {
			names[v.Name] = t.spec.Volumes[same].Name
			continue
		}
		names[v.Name] = label(c.Name[:min(len(c.Name), 56)] + "-" + v.Name)
		v.Name = names[v.Name]
		t.spec.Volumes = append(t.spec.Volumes, v)
	}
	c.VolumeMounts = slices.Clone(c.VolumeMounts)
	slices.SortFunc(c.VolumeMounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	for i := range c.VolumeMounts {
		c.VolumeMounts[i].Name = names[c.VolumeMounts[i].Name]
	}
	t.spec.Containers = append(t.spec.Containers, c)
}
