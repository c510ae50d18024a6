// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Layer says what the containers of a pod may write into their own layers, the file systems above their images.
type Layer struct {
	// Writable false makes the file systems of all containers read-only, except for their volumes and for /run, /tmp
	// and /var/tmp, which are then in memory. Default: true.
	// +optional
	Writable *bool `json:"writable,omitempty"`
	// SizeLimit is the most that the containers of a pod may write into their layers together; a pod that has written
	// more is ended and replaced. If writable is false, it is the size of each of /run, /tmp and /var/tmp. Default:
	// no limit; 64Mi for each of them.
	// +optional
	SizeLimit *resource.Quantity `json:"sizeLimit,omitempty"`
	// Snapshotter is the snapshotter of containerd that has the images of the containers, and their layers. One machine
	// only. Default: that of wangell up.
	// +optional
	Snapshotter string `json:"snapshotter,omitempty"`
}
