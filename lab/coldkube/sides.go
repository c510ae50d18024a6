// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"slices"

	"wangell.loutres.me/lab/cluster"
)

// makeSides returns the named sides in the given order. The floor uses Wangell's pod template if Wangell is measured
// before it.
func makeSides(c *cluster.Cluster, image string, names []string) (sides []side) {
	for i, name := range names {
		switch name {
		case SideWangell:
			sides = append(sides, &wangellSide{cluster: c, image: image})
		case SideFloor:
			like := slices.Contains(names[:i], SideWangell)
			sides = append(sides, &floorSide{cluster: c, image: image, likeWangell: like})
		case SideKnative, SideKnativeNoToken:
			sides = append(sides, newKnativeSide(c, image, name == SideKnative))
		}
	}
	return sides
}
