// SPDX-License-Identifier: Apache-2.0

package wire

import "wangell.loutres.me/internal/base/monotime"

// ImagePolicy says whether a daemon pulls an image.
type ImagePolicy uint8

// The values of ImagePolicy.
const (
	ImageIfNotPresent ImagePolicy = 1 // unless the node has it
	ImageAlways       ImagePolicy = 2 // once for each revision
	ImageNever        ImagePolicy = 3 // not at all: the node has it, or not
)

// WantedImage is an image that a node should have.
type WantedImage struct {
	// Ref is the image's name as a user wrote it, 1 to MaxImageText bytes.
	Ref    string
	Policy ImagePolicy
	// Lazy is set if containers should be able to start before the image is complete.
	Lazy bool
	// Revision changes when the image should be pulled again under ImageAlways.
	Revision uint64
}

// Images is part of the set of images that a node should have; see NewImages. All pieces of a generation, in order,
// are the set. Generations are counted per session.
type Images struct {
	Generation    uint64
	Piece, Pieces uint16
	Images        []WantedImage // at most 64 per message
}

// Type returns TypeImages.
func (*Images) Type() Type { return TypeImages }

// ImageState is the state of an image on a node.
type ImageState uint8

// The states of an image.
const (
	ImageWaiting ImageState = 1 // nothing was done yet
	ImagePulling ImageState = 2
	ImagePresent ImageState = 3
	ImageFailed  ImageState = 4 // it is not there, and will be tried again
)

// ImageReport is the state of one image of the set on a daemon's node.
type ImageReport struct {
	Ref   string
	State ImageState
	// Reason is a word such as NotFound, and Message a sentence for users, at most MaxImageText bytes. A present
	// image has them if it is not present in the wanted way. Otherwise they are empty unless the state is
	// ImageFailed.
	Reason, Message string
	// Digest and Size in bytes are those of a present image, as the container runtime reports them.
	Digest string
	Size   uint64
	// Since is when the state began.
	Since monotime.Time
}

// ImageReports carries states of images, each when it has changed and all at the start of a session.
type ImageReports struct{ Images []ImageReport } // at most MaxImageReports per message

// Type returns TypeImageReports.
func (*ImageReports) Type() Type { return TypeImageReports }

// Unreadable reports that a pod of the daemon's node started before its image was complete, and that the rest of the
// image cannot be fetched: programs that read it get EIO.
type Unreadable struct {
	UID   string // the pod's UID, 1 to 64 bytes
	Cause string // which files of which image cannot be fetched, from where, and why; at most MaxImageText bytes
}

// Type returns TypeUnreadable.
func (*Unreadable) Type() Type { return TypeUnreadable }

// ImagePulled reports how much of an image is on the daemon's node while it is being pulled.
type ImagePulled struct {
	Ref string
	// Done and Total are packed bytes of the image's layers; those that were there before count as done.
	Done, Total uint64
}

// Type returns TypeImagePulled.
func (*ImagePulled) Type() Type { return TypeImagePulled }
