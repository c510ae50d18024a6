// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
)

// Values of Images.Ready.
const (
	ImagesReady    = "True"
	ImagesNotReady = "False"
	ImagesUnknown  = "Unknown"
)

// Reasons of an Images beside those that daemons report.
const (
	ImagesPresent = "Present"
	ImagesPulling = "Pulling"
	ImagesWaiting = "Waiting"
	ImagesOnWake  = "OnWake"
	ImagesNoPods  = "NoPods"
	ImagesNoNode  = "NoNode"
	ImagesTooMany = "TooManyImages"
	ImagesInvalid = "InvalidReference"
)

// Images reports whether nodes have the images of a service ahead of need.
type Images struct {
	// Ready is True once a node has all of them, False if none has, and Unknown if they are not pulled ahead of need.
	Ready string
	// Reason is a single word: Present, Pulling, Waiting, OnWake, NoNode, TooManyImages, or why the pull failed.
	// Message is a sentence for users.
	Reason, Message string
	// VolumesNotKept says which folders that the images declare as volumes are lost with each pod; empty if there are
	// none, or while no node has the images.
	VolumesNotKept string
}

// Failed reports whether a user has something to do.
func (s Images) Failed() bool {
	switch s.Reason {
	case ImagesPulling, ImagesWaiting:
		return false
	}
	return s.Ready == ImagesNotReady
}

// Problem is what a user has to fix; empty if there is nothing.
func (s Images) Problem() string {
	if s.Failed() {
		return s.Message
	}
	return ""
}

// LazyPulls says whether the pods of a service on a cluster start before their image is complete.
type LazyPulls uint8

// The values of LazyPulls.
const (
	LazyUndecided LazyPulls = iota // the nodes are not known yet
	LazyOff                        // images are pulled in full
	LazyOn
)

// Progress describes how many bytes of an image have been pulled; empty if that is unknown.
func Progress(done, total uint64) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f of %.1f MB)", float64(done)/1e6, float64(total)/1e6)
}
