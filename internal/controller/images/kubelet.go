// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// Images that need credentials are pulled by kubelet (runtime.Cluster.PullImage), which has the credentials. The
// node's daemon only checks that they are present, pins them and reports their digests: it gets them with the policy
// Never. This applies to pods with imagePullSecrets, and to images that a registry has refused to a daemon.

const (
	// kubeletPulls is the number of images that kubelet pulls at a time on a node.
	kubeletPulls = 2
	// DefaultRetry and lastPullRetry bound the pause after a failure, which doubles, as for pulls by daemons.
	DefaultRetry  = 10 * time.Second
	lastPullRetry = 5 * time.Minute
)

// kubelet has kubelet pull images on the nodes that should have them.
type kubelet struct {
	*state
	host    Host
	cluster runtime.Cluster
	retry   time.Duration // the first pause after a pull has failed
	// tell is called when the daemon of a node should look at its images again.
	tell func(*node)
	// news is called when the state of an image has changed.
	news func(image string)
}

// needsKubelet reports whether kubelet, and not the daemon, pulls an image for a node.
func (p *kubelet) needsKubelet(n *node, w placement.Want) bool {
	k := n.pulls[w.Name]
	return w.Policy != corev1.PullNever && (k != nil && k.refused || refused(n.reports[w.Name].ImageReport) ||
		slices.ContainsFunc(p.users[w.Name], (*Service).hasPullSecrets))
}

// divideWants returns the images of a node for its daemon, and keeps those that kubelet pulls.
func (p *kubelet) divideWants(n *node) []wire.WantedImage {
	wants := p.plan.Wants[n.Name]
	list := make([]wire.WantedImage, len(wants))
	kept := make(map[string]*kubeletPull)
	for i, w := range wants {
		if d := p.disputes[w.Name]; d != nil && w.Policy == corev1.PullIfNotPresent {
			w.Policy, w.Revision = corev1.PullAlways, d.rounds
		}
		policy := cmp.Or(policies[w.Policy], wire.ImageIfNotPresent)
		list[i] = wire.WantedImage{Ref: w.Name, Policy: policy, Lazy: w.Lazy, Revision: w.Revision}
		if !p.needsKubelet(n, w) {
			continue
		}
		k := n.pulls[w.Name]
		if k == nil {
			k = &kubeletPull{}
		}
		k.refused = k.refused || refused(n.reports[w.Name].ImageReport)
		if k.want != w {
			k.want, k.fetched, k.pause, k.due = w, false, 0, time.Time{}
		}
		kept[w.Name] = k
		list[i].Policy, list[i].Revision = wire.ImageNever, k.looks
	}
	for name, k := range n.pulls {
		if kept[name] == nil && k.cancel != nil {
			k.cancel()
		}
	}
	n.pulls = kept
	return list
}

// pullHere begins the pulls by kubelet that are due on a node.
func (p *kubelet) pullHere(n *node) {
	if p.host.Idle() || n.session == 0 {
		return
	}
	busy := 0
	var due []*kubeletPull
	for _, k := range n.pulls {
		r := n.reports[k.want.Name]
		ended := r.State == wire.ImagePresent || r.State == wire.ImageFailed
		switch {
		case k.cancel != nil:
			busy++
		case ended && !k.awaiting && (r.State != wire.ImagePresent || k.stale()) && !time.Now().Before(k.due):
			due = append(due, k)
		}
	}
	slices.SortFunc(due, func(a, b *kubeletPull) int {
		return cmp.Or(cmp.Compare(a.tries, b.tries), cmp.Compare(a.want.Name, b.want.Name))
	})
	for _, k := range due[:min(len(due), max(kubeletPulls-busy, 0))] {
		p.beginPull(n, k)
	}
}

// beginPull has kubelet pull an image as for a pod of a service that uses it. A service with credentials is
// preferred; several take turns.
func (p *kubelet) beginPull(n *node, k *kubeletPull) {
	var users, without []*Service
	for _, s := range p.users[k.want.Name] {
		if s.hasPullSecrets() {
			users = append(users, s)
		} else {
			without = append(without, s)
		}
	}
	if len(users) == 0 {
		users = without
	}
	if len(users) == 0 {
		return
	}
	slices.SortFunc(users, func(a, b *Service) int { return cmp.Compare(a.key, b.key) })
	user := users[k.tries%len(users)]
	ctx, cancel := context.WithCancel(p.host.Context())
	k.cancel, k.since, k.tries = cancel, monotime.Now(), k.tries+1
	want := k.want
	pull := runtime.ImagePull{Service: user.spec, Node: n.Name, Image: want.Name, Policy: want.Policy,
		Lazy: want.Lazy}
	p.host.Go(func() {
		err := p.cluster.PullImage(ctx, pull)
		cancel()
		p.host.Post(func() { p.endPull(n, k, want, err) })
	})
	p.news(want.Name)
}

// endPull handles the result of a pull by kubelet.
func (p *kubelet) endPull(n *node, k *kubeletPull, want placement.Want, err error) {
	k.cancel = nil
	if p.nodes[n.Name] != n || n.pulls[want.Name] != k || p.host.Idle() {
		return
	}
	if k.want == want {
		k.pause = backoff.Next(k.pause, p.retry, lastPullRetry)
		k.due = time.Now().Add(k.pause)
		if err == nil {
			k.failed, k.fetched, k.awaiting = wire.ImageReport{}, true, true
			k.looks++
			if n.session != 0 {
				p.tell(n)
			}
		} else {
			k.failed = pullReport(want.Name, err)
		}
		// After a pull, too: the image may be gone again before the daemon has looked.
		p.host.After(k.pause, func() {
			k.awaiting = false
			p.pullHere(n)
			p.news(want.Name)
		})
	}
	p.news(want.Name)
	p.pullHere(n)
}

// pullReport describes a pull by kubelet that has failed.
func pullReport(name string, err error) wire.ImageReport {
	r := wire.ImageReport{Ref: name, State: wire.ImageFailed, Reason: cri.ReasonPullFailed, Message: err.Error()}
	var known *cri.ImageError
	if errors.As(err, &known) {
		r.Reason = known.Reason
	}
	return r
}

// heard handles a daemon's report of an image that kubelet pulls, or should pull.
func (p *kubelet) heard(n *node, r wire.ImageReport) {
	k := n.pulls[r.Ref]
	switch {
	case k == nil && refused(r) && slices.ContainsFunc(p.plan.Wants[n.Name], func(w placement.Want) bool {
		return w.Name == r.Ref
	}):
		p.tell(n)
	case k == nil:
		return
	case r.State == wire.ImagePresent && !k.stale():
		k.awaiting, k.tries, k.pause, k.due, k.failed = false, 0, 0, time.Time{}, wire.ImageReport{}
	}
	p.pullHere(n)
}
