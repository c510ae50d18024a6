// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	"wangell.loutres.me/internal/base/monotime"
)

// Limits of messages about images.
const (
	MaxImages       = 4096 // images of a node
	MaxImageText    = 1024 // bytes of an image's name or of the message of a report
	MaxImageReports = 16   // of ImageReports
	MaxImageVolumes = 16   // of an ImageReport, of MaxImageText bytes together

	imagesPerPiece  = 64
	maxImagePieces  = MaxImages / imagesPerPiece
	maxImageReason  = 32  // bytes
	maxImageDigest  = 128 // bytes
	maxImagePolicy  = ImageNever
	maxImageState   = ImageFailed
	policyLazy      = 0x80                        // bit of a policy
	wantedImageSize = 2 + 1 + 8                   // bytes without the name
	imageReportSize = 2 + 1 + 1 + 1 + 8*2 + 2 + 1 // bytes without texts
)

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

// NewImages splits the set of images of a node, at most MaxImages, into messages. An empty set takes one message.
func NewImages(generation uint64, images []WantedImage) []*Images {
	pieces := max(1, (len(images)+imagesPerPiece-1)/imagesPerPiece)
	out := make([]*Images, pieces)
	for i := range out {
		out[i] = &Images{
			Generation: generation, Piece: uint16(i), Pieces: uint16(pieces),
			Images: images[min(i*imagesPerPiece, len(images)):min((i+1)*imagesPerPiece, len(images))],
		}
	}
	return out
}

// Images is part of the set of images that a node should have; see NewImages. All pieces of a generation, in order,
// are the set. Generations are counted per session.
type Images struct {
	Generation    uint64        // the version of the set, which grows
	Piece, Pieces uint16        // number of this message, from 0, and of all messages of the set
	Images        []WantedImage // at most 64 per message
}

// Type returns TypeImages.
func (*Images) Type() Type { return TypeImages }

func (m *Images) check() error {
	if m.Piece >= m.Pieces || m.Pieces > maxImagePieces {
		return fmt.Errorf("piece %d of %d, at most %d", m.Piece, m.Pieces, maxImagePieces)
	}
	if len(m.Images) > imagesPerPiece {
		return fmt.Errorf("%d images, at most %d per message", len(m.Images), imagesPerPiece)
	}
	for i := range m.Images {
		w := &m.Images[i]
		if w.Policy < ImageIfNotPresent || w.Policy > maxImagePolicy {
			return fmt.Errorf("unknown pull policy %d", w.Policy)
		}
		if err := checkImage(w.Ref); err != nil {
			return err
		}
	}
	return nil
}

func (m *Images) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Generation)
	b = binary.BigEndian.AppendUint16(b, m.Piece)
	b = binary.BigEndian.AppendUint16(b, m.Pieces)
	b = append(b, byte(len(m.Images)))
	for i := range m.Images {
		w := &m.Images[i]
		policy := byte(w.Policy)
		if w.Lazy {
			policy |= policyLazy
		}
		b = append(appendName(b, w.Ref), policy)
		b = binary.BigEndian.AppendUint64(b, w.Revision)
	}
	return b
}

func (m *Images) decode(d *decoder) {
	m.Generation, m.Piece, m.Pieces = d.u64(), d.u16(), d.u16()
	if n := d.count(int(d.u8()), wantedImageSize); n > 0 {
		m.Images = make([]WantedImage, n)
	}
	for i := range m.Images {
		ref, policy := d.name(), d.u8()
		m.Images[i] = WantedImage{
			Ref: ref, Policy: ImagePolicy(policy &^ policyLazy), Lazy: policy&policyLazy != 0, Revision: d.u64(),
		}
	}
}

// ImageState is the state of an image on a node.
type ImageState uint8

// The states of an image.
const (
	ImageWaiting ImageState = 1 // nothing was done yet
	ImagePulling ImageState = 2 // it is being pulled
	ImagePresent ImageState = 3 // the node has it
	ImageFailed  ImageState = 4 // it is not there, and will be tried again
)

// ImageReport is the state of one image of the set on a daemon's node.
type ImageReport struct {
	Ref   string     // name of the image, as in Images
	State ImageState // whether the image is there
	// Reason is a word such as NotFound, and Message a sentence for users, at most MaxImageText bytes. A present
	// image has them if it is not present in the wanted way. Otherwise they are empty unless the state is
	// ImageFailed.
	Reason, Message string
	// Digest is that of a present image, as the container runtime reports it.
	Digest string
	Size   uint64 // of a present image, in bytes
	// Since is when the state began.
	Since monotime.Time
	// Volumes are the folders that a present image declares as volumes, sorted: at most MaxImageVolumes, with at most
	// MaxImageText bytes together. Those above the limits are left out.
	Volumes []string
}

// Equal reports whether both reports say the same.
func (r *ImageReport) Equal(o *ImageReport) bool {
	return r.Ref == o.Ref && r.State == o.State && r.Reason == o.Reason && r.Message == o.Message &&
		r.Digest == o.Digest && r.Size == o.Size && r.Since == o.Since && slices.Equal(r.Volumes, o.Volumes)
}

// ImageReports carries states of images, each when it has changed and all at the start of a session.
type ImageReports struct{ Images []ImageReport } // at most MaxImageReports per message

// Type returns TypeImageReports.
func (*ImageReports) Type() Type { return TypeImageReports }

func (m *ImageReports) check() error {
	if len(m.Images) > MaxImageReports {
		return fmt.Errorf("%d images, at most %d per message", len(m.Images), MaxImageReports)
	}
	for i := range m.Images {
		r := &m.Images[i]
		if r.State < ImageWaiting || r.State > maxImageState {
			return fmt.Errorf("unknown state of an image %d", r.State)
		}
		if err := checkImage(r.Ref); err != nil {
			return err
		}
		for _, s := range []struct {
			what, text string
			limit      int
		}{
			{"reason", r.Reason, maxImageReason}, {"digest", r.Digest, maxImageDigest}, {"message", r.Message, MaxImageText},
		} {
			if err := checkString(s.what, s.text, s.limit); err != nil {
				return err
			}
		}
		if err := checkTimes(r.Since); err != nil {
			return err
		}
		if err := r.checkVolumes(); err != nil {
			return err
		}
	}
	return nil
}

func (r *ImageReport) checkVolumes() error {
	if n := len(r.Volumes); n > MaxImageVolumes {
		return fmt.Errorf("%d volumes, at most %d of an image", n, MaxImageVolumes)
	}
	left := MaxImageText
	for _, v := range r.Volumes {
		if err := checkString("volumes", v, left); err != nil {
			return err
		}
		left -= len(v)
	}
	return nil
}

func (m *ImageReports) append(b []byte) []byte {
	b = append(b, byte(len(m.Images)))
	for i := range m.Images {
		r := &m.Images[i]
		b = append(appendName(b, r.Ref), byte(r.State))
		b = appendText(appendText(b, r.Reason), r.Digest)
		b = appendTime(binary.BigEndian.AppendUint64(b, r.Size), r.Since)
		b = append(appendName(b, r.Message), byte(len(r.Volumes)))
		for _, v := range r.Volumes {
			b = appendName(b, v)
		}
	}
	return b
}

func (m *ImageReports) decode(d *decoder) {
	if n := d.count(int(d.u8()), imageReportSize); n > 0 {
		m.Images = make([]ImageReport, n)
	}
	for i := range m.Images {
		m.Images[i] = ImageReport{
			Ref: d.name(), State: ImageState(d.u8()), Reason: d.text(), Digest: d.text(), Size: d.u64(), Since: d.time(),
			Message: d.name(),
		}
		if n := d.count(int(d.u8()), 2); n > 0 {
			m.Images[i].Volumes = make([]string, n)
		}
		for j := range m.Images[i].Volumes {
			m.Images[i].Volumes[j] = d.name()
		}
	}
}

func (m *ImageReports) times(f func(*monotime.Time)) {
	for i := range m.Images {
		f(&m.Images[i].Since)
	}
}

// Unreadable reports that a pod of the daemon's node started before its image was complete, and that the rest of the
// image cannot be fetched: programs that read it get EIO.
type Unreadable struct {
	UID   string // the pod's UID, 1 to 64 bytes
	Cause string // which files of which image cannot be fetched, from where, and why; at most MaxImageText bytes
}

// Type returns TypeUnreadable.
func (*Unreadable) Type() Type { return TypeUnreadable }

func (m *Unreadable) check() error {
	if m.UID == "" {
		return fmt.Errorf("a pod without UID")
	}
	if err := checkString("UID", m.UID, maxUID); err != nil {
		return err
	}
	return checkString("cause", m.Cause, MaxImageText)
}

func (m *Unreadable) append(b []byte) []byte { return appendName(appendText(b, m.UID), m.Cause) }

func (m *Unreadable) decode(d *decoder) { m.UID, m.Cause = d.text(), d.name() }

// ImagePulled reports how much of an image is on the daemon's node while it is being pulled.
type ImagePulled struct {
	Ref string // name of the image, as in Images
	// Done and Total are packed bytes of the image's layers; those that were there before count as done.
	Done, Total uint64
}

// Type returns TypeImagePulled.
func (*ImagePulled) Type() Type { return TypeImagePulled }

func (m *ImagePulled) check() error {
	if m.Done > m.Total {
		return fmt.Errorf("%d of %d bytes of an image", m.Done, m.Total)
	}
	return checkImage(m.Ref)
}

func (m *ImagePulled) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(appendName(b, m.Ref), m.Done), m.Total)
}

func (m *ImagePulled) decode(d *decoder) { m.Ref, m.Done, m.Total = d.name(), d.u64(), d.u64() }

func checkImage(ref string) error {
	if ref == "" {
		return fmt.Errorf("an image without a name")
	}
	return checkString("image", ref, MaxImageText)
}
