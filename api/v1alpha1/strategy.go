// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Strategy returns updateStrategy. Where that is left out, it is UpdateRecreate if the service has one pod, and a
// second one could write to the same volume. With a maxReplicas above 1, the manifest says that several pods may. It
// ignores the service's claims: see Decide.
func (s *WangellServiceSpec) Strategy() UpdateStrategy { return s.Decide(nil).Strategy }

// ClaimModes returns the access modes that a PersistentVolumeClaim of the service's namespace asks for; none if it is
// not known, or not there.
// +kubebuilder:object:generate=false
type ClaimModes func(claim string) []corev1.PersistentVolumeAccessMode

// StrategyDecision is an update strategy and why it applies.
// +kubebuilder:object:generate=false
type StrategyDecision struct {
	Strategy UpdateStrategy
	// Reason is one word for a condition. Message explains it to users, and may be empty.
	Reason, Message string
}

// The reasons of a StrategyDecision.
const (
	ReasonChosen      = "Chosen"      // updateStrategy is set
	ReasonSeveralPods = "SeveralPods" // maxReplicas is above 1
	ReasonOneWriter   = "OneWriter"   // two pods could write to a volume that is for one
	ReasonManyWriters = "ManyWriters" // the volumes that two pods could write to are for many
	ReasonNoVolume    = "NoVolume"    // two pods cannot write to one volume
)

// Decide returns the strategy that applies. A claim that asks for ReadWriteMany was made for several writers, and
// nothing is written through one that asks for ReadOnlyMany alone. One whose modes are not known counts as a volume for
// one writer; so does every claim if modes is nil.
func (s *WangellServiceSpec) Decide(modes ClaimModes) StrategyDecision {
	switch {
	case s.UpdateStrategy != "":
		return StrategyDecision{s.UpdateStrategy, ReasonChosen, "as spec.updateStrategy says"}
	case mostPods(s) > 1:
		return StrategyDecision{UpdateRolling, ReasonSeveralPods, "spec.maxReplicas is above 1"}
	}
	d := StrategyDecision{UpdateRolling, ReasonNoVolume, ""}
	for v := range s.sharedVolumes {
		may, what := manyMayWrite(v, modes)
		if !may {
			message := fmt.Sprintf("volume %q is for one writer: %s", v.Name, what)
			return StrategyDecision{UpdateRecreate, ReasonOneWriter, message}
		}
		d.Reason, d.Message = ReasonManyWriters, fmt.Sprintf("volume %q is not for one writer: %s", v.Name, what)
	}
	return d
}

// manyMayWrite reports whether several pods may write to a volume, and what says so.
func manyMayWrite(v *corev1.Volume, modes ClaimModes) (may bool, what string) {
	claim := v.PersistentVolumeClaim
	if claim == nil {
		return false, "it is no PersistentVolumeClaim"
	}
	var asked []corev1.PersistentVolumeAccessMode
	if modes != nil {
		asked = modes(claim.ClaimName)
	}
	if len(asked) == 0 {
		return false, fmt.Sprintf("the access modes of PersistentVolumeClaim %s are not known", claim.ClaimName)
	}
	readOnly := !slices.ContainsFunc(asked, func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadOnlyMany
	})
	words := make([]string, len(asked))
	for i, m := range asked {
		words[i] = string(m)
	}
	return readOnly || slices.Contains(asked, corev1.ReadWriteMany),
		fmt.Sprintf("PersistentVolumeClaim %s asks for %s", claim.ClaimName, strings.Join(words, ", "))
}

// Claims returns the names of the PersistentVolumeClaims on whose access modes the strategy depends.
func (s *WangellServiceSpec) Claims() (names []string) {
	if s.UpdateStrategy != "" || mostPods(s) > 1 {
		return nil
	}
	for v := range s.sharedVolumes {
		if c := v.PersistentVolumeClaim; c != nil && !slices.Contains(names, c.ClaimName) {
			names = append(names, c.ClaimName)
		}
	}
	return names
}

// SharedVolume returns the name of the first volume that two pods of the service may write to; empty if there is none.
func (s *WangellServiceSpec) SharedVolume() string {
	for v := range s.sharedVolumes {
		return v.Name
	}
	return ""
}

// sharedVolumes yields the volumes that two pods of the service may write to.
func (s *WangellServiceSpec) sharedVolumes(yield func(*corev1.Volume) bool) {
	mounts := s.mounts()
	var volumes []corev1.Volume
	for i := range s.Volumes {
		volumes = append(volumes, s.Volumes[i].Volume) // one that is persistent has no source, and counts as shared
	}
	var devices []corev1.VolumeDevice
	if s.Template != nil {
		pod := &s.Template.Spec
		volumes, mounts = pod.Volumes, nil
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			mounts, devices = append(mounts, c.VolumeMounts...), append(devices, c.VolumeDevices...)
		}
	}
	for i := range volumes {
		v := &volumes[i]
		writes := slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name && !m.ReadOnly }) ||
			slices.ContainsFunc(devices, func(d corev1.VolumeDevice) bool { return d.Name == v.Name })
		if writes && shared(&v.VolumeSource) && !yield(v) {
			return
		}
	}
}

// shared reports whether pods of a service have a volume in common and may write to it. Kinds that each pod has for
// itself, or that are read-only, are known by name, so that an unknown kind counts as shared.
func shared(v *corev1.VolumeSource) bool {
	switch {
	case v.EmptyDir != nil, v.Ephemeral != nil, v.GitRepo != nil, v.ConfigMap != nil, v.Secret != nil,
		v.DownwardAPI != nil, v.Projected != nil, v.Image != nil:
		return false
	case v.PersistentVolumeClaim != nil:
		return !v.PersistentVolumeClaim.ReadOnly
	case v.CSI != nil: // it may be a network share
		return v.CSI.ReadOnly == nil || !*v.CSI.ReadOnly
	case v.HostPath != nil:
		t := v.HostPath.Type
		return t == nil || *t != corev1.HostPathSocket && *t != corev1.HostPathCharDev
	}
	return true
}
