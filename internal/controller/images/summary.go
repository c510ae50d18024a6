// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// unplanned returns the status of a service whose images are not pulled ahead of need; planned is true for all others.
func unplanned(spec *v1alpha1.WangellServiceSpec) (st status.Images, planned bool) {
	switch {
	case spec.SplitsTraffic():
		return unknown(status.ImagesNoPods, "traffic goes to other services, which have the images"), false
	case !spec.PullsOnCreate():
		return unknown(status.ImagesOnWake, "imagePull.when is Wake: the first wake on a node pulls its images"), false
	case slices.ContainsFunc(spec.Images(), func(i v1alpha1.ContainerImage) bool {
		return len(i.Ref) > wire.MaxImageText
	}):
		return notReady(status.ImagesInvalid, fmt.Sprintf("the name of an image has more than %d bytes: check spec.template",
			wire.MaxImageText)), false
	}
	return status.Images{}, true
}

func unknown(reason, message string) status.Images {
	return status.Images{Ready: status.ImagesUnknown, Reason: reason, Message: message}
}

func notReady(reason, message string) status.Images {
	return status.Images{Ready: status.ImagesNotReady, Reason: reason, Message: message}
}

// imageState is a node's view of an image: its last report and, during a pull, the bytes pulled and their total; zero
// if unknown.
type imageState struct {
	wire.ImageReport
	done, total uint64
}

// stateOf returns the state of an image on a node, by placement.Image.Name.
type stateOf func(node, name string) imageState

// summarize returns the status of a service whose images are pulled ahead of need, and the nodes that have all of
// them.
func summarize(images []placement.Image, nodes []string, full bool, state stateOf) (status.Images, []string) {
	switch {
	case len(nodes) == 0 && full:
		return notReady(status.ImagesTooMany, fmt.Sprintf("the nodes have as many images as they may (%d): "+
			"set imagePull: {when: Wake} for services that can wait", wire.MaxImages)), nil
	case len(nodes) == 0:
		return notReady(status.ImagesNoNode, "no node with a daemon fits the pod's node selector, node affinity and "+
			"tolerations: check spec.template, and the daemons' DaemonSet"), nil
	}
	var have, pulling, waiting, failed []string
	reason, digest, note := "", "", ""
	for _, node := range nodes {
		worst, ref := imageState{ImageReport: wire.ImageReport{State: wire.ImagePresent}}, ""
		for _, image := range images {
			r := state(node, image.Name)
			if rank[r.State] > rank[worst.State] {
				worst, ref = r, image.Ref
			}
			if r.State == wire.ImagePresent {
				digest = r.Digest
				if r.Reason == cri.ReasonNotLazy {
					note = fmt.Sprintf("image %q on %s: %s", image.Ref, node, r.Message)
				}
			}
		}
		switch worst.State {
		case wire.ImagePresent:
			have = append(have, node)
		case wire.ImagePulling:
			since := worst.Since.Wall().UTC().Truncate(time.Second).Format(time.RFC3339)
			pulling = append(pulling, fmt.Sprintf("image %q is being pulled on %s since %s%s", ref, node, since,
				status.Progress(worst.done, worst.total)))
		case wire.ImageFailed:
			reason = cmp.Or(reason, worst.Reason)
			failed = append(failed, fmt.Sprintf("image %q on %s: %s", ref, node, worst.Message))
		default:
			waiting = append(waiting, fmt.Sprintf("image %q is about to be pulled on %s", ref, node))
		}
	}
	rest := some(append(append(failed, pulling...), waiting...))
	st := notReady(reason, rest)
	switch {
	case len(have) > 0:
		what := fmt.Sprintf("%d images", len(images))
		if len(images) == 1 {
			what = "digest " + cmp.Or(digest, "unknown")
		}
		on := fmt.Sprintf("on %d of %d nodes (%s), %s", len(have), len(nodes), some(have), what)
		st = status.Images{
			Ready: status.ImagesReady, Reason: status.ImagesPresent, Message: strings.TrimSuffix(on+"; "+rest, "; "),
		}
		if note != "" {
			st.Reason, st.Message = cri.ReasonNotLazy, st.Message+"; "+note
		}
	case len(failed) > 0:
	case len(pulling) > 0:
		st.Reason = status.ImagesPulling
	default:
		st.Reason = status.ImagesWaiting
	}
	return st, have
}

// rank orders the states of images from the best to the worst.
var rank = map[wire.ImageState]int{
	wire.ImagePresent: 1, wire.ImageWaiting: 2, 0: 2, wire.ImagePulling: 3, wire.ImageFailed: 4,
}

// some joins the first items of a list, and says how many are left out.
func some(list []string) string {
	const most = 4
	if left := len(list) - most; left > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), left)
	}
	return strings.Join(list, ", ")
}
