// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

// state is which images nodes should have for which services, and what the nodes report of them. The parts of a Planner
// share it.
type state struct {
	nodes map[string]*node
	plan  placement.Plan
	users map[string][]*Service // services by image
	// disputes are those about images, by their names.
	disputes map[string]*dispute
}

// node is a node that has, or had, a daemon.
type node struct {
	placement.Node
	described  bool
	session    uint64 // of its daemon; 0 while there is none
	lost       monotime.Time
	reports    map[string]imageState // by image
	sent       []wire.WantedImage
	shared     []string // repositories of sent that the node shares with others, sorted
	sentIn     uint64   // session
	generation uint64   // of sent, in that session
	pulls      map[string]*kubeletPull

	mirror           uint64   // the session in which it has said that it shares images; 0: it does not
	needed           []string // repositories of the services whose pods may run there, as last sent, sorted
	neededIn         uint64   // session
	neededGeneration uint64   // of needed, in that session
}

// rename notes that nodes with an image also have it by the name with its digest, before they report so.
func (p *state) rename(ref, name, digest string) {
	for _, n := range p.nodes {
		r, known := n.reports[ref]
		if _, has := n.reports[name]; known && !has && r.State == wire.ImagePresent && r.Digest == digest {
			r.Ref = name
			n.reports[name] = r
		}
	}
}

// report returns a node's last report of an image; the zero value if there is none.
func (p *state) report(node, name string) imageState {
	if n := p.nodes[node]; n != nil {
		return n.reports[name]
	}
	return imageState{}
}

// kubeletPull is an image of a node that kubelet pulls.
type kubeletPull struct {
	refused  bool               // a registry has refused it to the daemon
	want     placement.Want     // as it was wanted last
	fetched  bool               // the policy is Always, and it was pulled since want changed
	cancel   context.CancelFunc // of the pull that runs; nil if none does
	since    monotime.Time      // when that began
	looks    uint64             // incremented when the daemon should look again
	awaiting bool               // the daemon is looking
	tries    int
	pause    time.Duration
	due      time.Time        // when the next attempt is due
	failed   wire.ImageReport // why the last attempt failed; without a state if it did not
}

// stale reports whether an image must be pulled although the node has it.
func (k *kubeletPull) stale() bool { return k.want.Policy == corev1.PullAlways && !k.fetched }

// stateOn returns the state of an image on a node: its daemon's last report or, while kubelet pulls it, the progress of
// the pull.
func (p *state) stateOn(node, name string) imageState {
	r := p.report(node, name)
	n := p.nodes[node]
	if n == nil || n.pulls[name] == nil {
		return r
	}
	k := n.pulls[name]
	switch {
	case r.State == wire.ImagePresent && !k.stale():
		return r
	case k.failed.State != 0:
		return imageState{ImageReport: k.failed}
	case k.cancel != nil || k.awaiting:
		return imageState{ImageReport: wire.ImageReport{Ref: name, State: wire.ImagePulling, Since: k.since}}
	}
	return imageState{ImageReport: wire.ImageReport{Ref: name, State: wire.ImageWaiting}}
}

// endPulls ends the pulls by kubelet on a node that is gone.
func (n *node) endPulls() {
	for _, k := range n.pulls {
		if k.cancel != nil {
			k.cancel()
		}
	}
	n.pulls = nil
}

// refused reports whether a registry has refused an image to a daemon. The service account of its pods may have
// credentials, or kubelet itself.
func refused(r wire.ImageReport) bool {
	return r.State == wire.ImageFailed && r.Reason == cri.ReasonUnauthorized
}

// policies are the pull policies on the wire.
var policies = map[corev1.PullPolicy]wire.ImagePolicy{
	corev1.PullIfNotPresent: wire.ImageIfNotPresent, corev1.PullAlways: wire.ImageAlways,
	corev1.PullNever: wire.ImageNever,
}
