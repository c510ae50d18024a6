// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// ScratchFolders are the folders that programs expect to be able to write to, with their modes. They are in memory if
// spec.layer.writable is false.
var ScratchFolders = []ScratchFolder{{"/run", 0o755}, {"/tmp", 0o1777}, {"/var/tmp", 0o1777}}

// ScratchFolder is a folder of temporary files.
//
// +kubebuilder:object:generate=false
type ScratchFolder struct {
	Path string
	Mode uint32 // as for chmod(2)
}

// defaultScratch is the size of a scratch folder.
var defaultScratch = resource.MustParse("64Mi")

// ReadOnlyLayer reports whether the root file systems of the containers are read-only.
func (s *WangellServiceSpec) ReadOnlyLayer() bool {
	return s.Layer != nil && s.Layer.Writable != nil && !*s.Layer.Writable
}

// ScratchSize returns the size of each of ScratchFolders, if the layer is read-only.
func (s *WangellServiceSpec) ScratchSize() resource.Quantity {
	if s.Layer != nil && s.Layer.SizeLimit != nil {
		return *s.Layer.SizeLimit
	}
	return defaultScratch
}

// LayerLimit returns how many bytes the containers of a pod may write into their layers; 0 if there is no limit.
func (s *WangellServiceSpec) LayerLimit() int64 {
	if s.Layer == nil || s.Layer.SizeLimit == nil || s.ReadOnlyLayer() {
		return 0
	}
	return s.Layer.SizeLimit.Value()
}

// Snapshotter returns the snapshotter of containerd that the service wants for its images and layers; empty is any.
func (s *WangellServiceSpec) Snapshotter() string {
	if s.Layer == nil {
		return ""
	}
	return s.Layer.Snapshotter
}

// minLayer is the smallest size of a layer, or of a scratch folder. It also catches "64" and "64m" written for 64Mi.
var minLayer = resource.MustParse("1Mi")

// layer checks spec.layer.
func (e *ValidationErrors) layer(l *Layer) {
	if l != nil && l.SizeLimit != nil && l.SizeLimit.Cmp(minLayer) < 0 {
		e.add(specPath.Child("layer", "sizeLimit"), "write a size with its unit, for example sizeLimit: 256Mi",
			"%s is less than %s", l.SizeLimit.String(), minLayer.String())
	}
	if l != nil && strings.Trim(l.Snapshotter, "abcdefghijklmnopqrstuvwxyz0123456789-._") != "" {
		e.add(specPath.Child("layer", "snapshotter"), "write a name such as overlayfs, native or btrfs",
			"%q is not the name of a plugin of containerd", l.Snapshotter)
	}
}
