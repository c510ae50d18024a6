// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"

	"wangell.loutres.me/api/v1alpha1"
)

// ImageVolumes are the folders that the images of a service declare as volumes (VOLUME), without those for which the
// manifest mounts a volume.
type ImageVolumes struct {
	// Kept are persistent volumes of the service, of which one pod at a time may hold each.
	Kept []string
	// Lost end with each pod.
	Lost []string
}

// ImageVolumeKeeper is an optional interface for runtimes that keep the volumes of images.
type ImageVolumeKeeper interface {
	// ImageVolumes returns the volumes of a service's images, which Prepare has brought to the machine.
	ImageVolumes(ctx context.Context, s *v1alpha1.WangellService) (ImageVolumes, error)
}
