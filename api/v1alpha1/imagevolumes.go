// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ImageVolumes says what becomes of the folders that an image declares as volumes.
type ImageVolumes string

// The values of WangellServiceSpec.ImageVolumes.
const (
	ImageVolumesKeep    ImageVolumes = "Keep"    // they are persistent volumes of the service
	ImageVolumesDiscard ImageVolumes = "Discard" // they end with the pod
)

// KeepsImageVolumes reports whether one machine keeps what the service writes to the folders that its images declare as
// volumes. Without imageVolumes it does if one pod runs at a time: a volume may have one writer only.
func (s *WangellServiceSpec) KeepsImageVolumes() bool {
	return s.whyDiscard() == "" && s.ImageVolumes != ImageVolumesDiscard
}

// whyDiscard says why the service cannot keep the volumes of its images; empty if it can.
func (s *WangellServiceSpec) whyDiscard() string {
	switch {
	case mostPods(s) > 1:
		return "maxReplicas is above 1"
	case s.UpdateStrategy == UpdateRolling:
		return "updateStrategy is RollingUpdate"
	case s.PreparedPods() > 0:
		return "sleep.prepared is set"
	}
	return ""
}

// UnkeptVolumes returns the message about folders that are volumes of the image and are lost with each pod, on one
// machine or on Kubernetes; empty if there are none, or if the manifest asks for that.
func (s *WangellServiceSpec) UnkeptVolumes(paths []string, cluster bool) string {
	if len(paths) == 0 || s.ImageVolumes != "" || !cluster && s.whyDiscard() == "" {
		return ""
	}
	text := "what it writes to " + strings.Join(paths, ", ") +
		" is lost when a pod ends: the image declares it as a volume, "
	if cluster {
		return text + "and nothing is mounted there: mount a PersistentVolumeClaim, or write imageVolumes: Discard"
	}
	return text + "but " + s.whyDiscard() + ", so that two pods could write to it: mount a volume there, or write " +
		"imageVolumes: Discard"
}

// UnmountedVolumes returns the folders of a container's image that the image declares as volumes, in order, without
// those at or below which the container has a volume, and without those that are below others.
func (c *Container) UnmountedVolumes(declared map[string]struct{}) []string {
	return unmounted(maps.Keys(declared), c.VolumeMounts)
}

// LostVolumes returns the folders that the images of a service's pods on Kubernetes declare as volumes, and that are
// lost with each pod as nothing is mounted there, in order. declared returns those of an image by its name in the
// manifest. Init containers do not count: what they write is lost in any case.
func (s *WangellServiceSpec) LostVolumes(declared func(image string) []string) (paths []string) {
	add := func(image string, mounts []corev1.VolumeMount) {
		paths = append(paths, unmounted(slices.Values(declared(image)), mounts)...)
	}
	if s.Template == nil {
		add(s.Image, s.VolumeMounts)
		for c := range s.Others {
			if !s.IsInit(c.Name) {
				add(c.Image, c.VolumeMounts)
			}
		}
	} else {
		for _, c := range s.Template.Spec.InitContainers {
			if IsSidecar(c.RestartPolicy) {
				add(c.Image, c.VolumeMounts)
			}
		}
		for _, c := range s.Template.Spec.Containers {
			add(c.Image, c.VolumeMounts)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// unmounted returns the folders of declared that a container keeps nowhere; see UnmountedVolumes.
func unmounted(declared iter.Seq[string], mounts []corev1.VolumeMount) (paths []string) {
	covered := func(folder string, by string) bool { return folder == by || strings.HasPrefix(folder, by+"/") }
	for p := range declared {
		if p = path.Clean("/" + p); p == "/" || covered(p, "/proc") || covered(p, "/sys") || covered(p, "/dev") {
			continue
		}
		mounted := false
		for _, m := range mounts {
			at := path.Clean("/" + m.MountPath)
			mounted = mounted || at == "/" || covered(p, at)
		}
		if !mounted {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	var outer []string
	for _, p := range slices.Compact(paths) {
		if !slices.ContainsFunc(outer, func(o string) bool { return covered(p, o) }) {
			outer = append(outer, p)
		}
	}
	return outer
}

// ImageVolumeName returns the name of the persistent volume for a folder of an image: SERVICE.image.FOLDER, or
// SERVICE.image.CONTAINER.FOLDER for a container beside the main one, whose name is empty.
func ImageVolumeName(service, container, folder string) string {
	name := service + ".image"
	if container != "" {
		name += "." + container
	}
	parts := strings.Split(strings.Trim(folder, "/"), "/")
	label := strings.Join(parts, "-")
	plain := func(s string) bool { return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == "" }
	if i := slices.IndexFunc(parts, func(p string) bool { return !plain(p) }); i >= 0 || len(label) > maxFolderLabel {
		// Two folders must not have one volume, such as /a/b and /a-b.
		sum := sha256.Sum256([]byte(folder))
		label = toLabel(label)
		label = strings.Trim(label[:min(len(label), maxFolderLabel)], "-") + "-" + hex.EncodeToString(sum[:4])
		label = strings.TrimPrefix(label, "-")
	}
	return name + "." + label
}

// maxFolderLabel bounds the part of an image volume's name that stands for its folder, without its hash. A label of a
// name has at most validation.DNS1123LabelMaxLength characters.
const maxFolderLabel = validation.DNS1123LabelMaxLength - 9

// imageVolumes checks spec.imageVolumes.
func (e *ValidationErrors) imageVolumes(s *WangellServiceSpec) {
	p := specPath.Child("imageVolumes")
	e.oneOf(p, string(s.ImageVolumes), string(ImageVolumesKeep), string(ImageVolumesDiscard))
	if why := s.whyDiscard(); s.ImageVolumes == ImageVolumesKeep && why != "" {
		e.add(p, "mount a persistent volume there that is for several pods, or write imageVolumes: Discard",
			"Keep is for services of which one pod runs at a time, but %s", why)
	}
}

// imageVolumesOnCluster refuses what Kubernetes cannot do.
func (e *ValidationErrors) imageVolumesOnCluster(s *WangellServiceSpec) {
	if s.ImageVolumes == ImageVolumesKeep {
		e.add(specPath.Child("imageVolumes"), "mount a PersistentVolumeClaim there, or write imageVolumes: Discard",
			"Keep is not available on Kubernetes: only on one machine")
	}
}
