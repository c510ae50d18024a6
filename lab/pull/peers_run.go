// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"fmt"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/sharing"
)

// nodesEvery is how often nodes are asked for the image, which costs them some processor time.
const nodesEvery = 100 * time.Millisecond

// middle is the part of an image that a node has received when something happens in the middle of a pull.
const middle = 0.3

// peerRun is a pull in progress.
type peerRun struct {
	peerCase
	shared     sharedImage
	hub        *hub
	cluster    *sharing.Cluster
	ref, fixed string
}

// measure has the nodes pull, with the fault of the case.
func (r *peerRun) measure(ctx context.Context) (s PeerPull, err error) {
	s = PeerPull{Nodes: r.nodes, Peers: r.peers, Fault: r.fault, Open: r.open}
	pulling := r.cluster.Nodes
	if r.fault == FaultGarbage || r.fault == FaultRegistryGone {
		if pulling, err = r.seed(ctx); err != nil {
			return s, err
		}
	}
	origin := traffic{host: r.hub.host, sent: true}
	links := []*traffic{&origin}
	for _, n := range pulling {
		links = append(links, &traffic{host: n.Host()})
	}
	if err := look(links, 0); err != nil {
		return s, err
	}
	var before usage
	if r.fault == "" {
		if before, err = r.usage(); err != nil {
			return s, err
		}
	}
	if r.fault == FaultRegistryGone {
		if err := r.hub.close(); err != nil {
			return s, err
		}
	}
	begin := time.Now()
	if err := r.cluster.Want(r.ref, 0); err != nil {
		return s, err
	}
	if r.fault == FaultPeerDies || r.fault == FaultLeader {
		if pulling, err = r.disturb(ctx, pulling); err != nil {
			return s, err
		}
	}
	if s.Done, err = r.await(ctx, begin, pulling, links); err != nil {
		return s, err
	}
	s.Last = s.Done[len(s.Done)-1]
	s.OriginRatio = float64(origin.total()) / float64(r.shared.packed)
	s.OriginDone = origin.done()
	if r.fault != "" {
		return s, r.count(ctx, &s)
	}
	for _, l := range links[1:] {
		s.Received = max(s.Received, l.done())
	}
	after, err := r.usage()
	if err != nil {
		return s, err
	}
	s.ContainerdCPU = (after.containerd - before.containerd).Seconds()
	s.DaemonCPU = (after.daemon - before.daemon).Seconds()
	s.RegistryCPU = (after.registry - before.registry).Seconds()
	return s, r.count(ctx, &s)
}

// await waits until nodes have the image, and returns when each got it, in seconds since begin. Meanwhile it samples
// the links.
func (r *peerRun) await(ctx context.Context, begin time.Time, pulling []*sharing.Node, links []*traffic) (
	done []float64, err error,
) {
	for {
		if err := look(links, time.Since(begin)); err != nil {
			return nil, err
		}
		var left []*sharing.Node
		for _, n := range pulling {
			has, err := n.Has(ctx, r.fixed)
			if err != nil {
				return nil, err
			}
			if !has {
				left = append(left, n)
				continue
			}
			done = append(done, time.Since(begin).Seconds())
		}
		if pulling = left; len(pulling) == 0 {
			return done, nil
		}
		if lab.Sleep(ctx, nodesEvery) != nil {
			return nil, fmt.Errorf("%d nodes do not have the image after %v: %w", len(pulling), time.Since(begin), ctx.Err())
		}
	}
}

// usage is processor time, of all nodes and the registry.
type usage struct{ containerd, daemon, registry time.Duration }

func (r *peerRun) usage() (u usage, err error) {
	if u.registry, err = r.hub.proc.CPU(); err != nil {
		return u, err
	}
	for _, n := range r.cluster.Nodes {
		containerd, daemon, err := n.CPU()
		if err != nil {
			return u, err
		}
		u.containerd += containerd
		u.daemon += daemon
	}
	return u, nil
}

// count adds what the mirrors have counted.
func (r *peerRun) count(ctx context.Context, s *PeerPull) error {
	for _, n := range r.cluster.Nodes {
		if r.fault == FaultPeerDies && n == r.dying() {
			continue
		}
		for name, to := range map[string]*float64{
			`wangell_image_mirror_received_bytes_total{source="peer"}`: &s.FromPeers,
			"wangell_image_mirror_banned_peers_total":                  &s.Banned,
		} {
			value, err := n.Metric(ctx, name)
			if err != nil {
				return err
			}
			*to += value
		}
	}
	return nil
}

// dying is the node that dies.
func (r *peerRun) dying() *sharing.Node { return r.cluster.Nodes[len(r.cluster.Nodes)-1] }

// seed has one node pull the image and report it to the controller, and returns the others. With FaultGarbage, its
// image is corrupted afterwards.
func (r *peerRun) seed(ctx context.Context) (others []*sharing.Node, err error) {
	if err := r.cluster.Want(r.ref, 1); err != nil {
		return nil, err
	}
	for {
		others = nil
		var seed *sharing.Node
		for _, n := range r.cluster.Nodes {
			has, err := n.Has(ctx, r.fixed)
			switch {
			case err != nil:
				return nil, err
			case has:
				seed = n
			default:
				others = append(others, n)
			}
		}
		shared := 0.0
		if seed != nil {
			if shared, err = seed.Metric(ctx, "wangell_image_mirror_shared_blobs"); err != nil {
				return nil, err
			}
		}
		switch {
		case shared < float64(len(r.shared.layers)+2): // and manifest and configuration
			if err := lab.Sleep(ctx, nodesEvery); err != nil {
				return nil, fmt.Errorf("no node has pulled the image and shares it: %w", err)
			}
			continue
		case r.fault == FaultGarbage:
			return others, seed.Corrupt(r.shared.layers)
		}
		return others, nil
	}
}

// disturb waits for the middle of the pull. Then it kills the last node, or replaces the leader. It returns the
// remaining nodes.
func (r *peerRun) disturb(ctx context.Context, pulling []*sharing.Node) ([]*sharing.Node, error) {
	for {
		var got float64
		for _, source := range []string{"peer", "registry"} {
			n, err := r.dying().Metric(ctx, fmt.Sprintf("wangell_image_mirror_received_bytes_total{source=%q}", source))
			if err != nil {
				return nil, err
			}
			got += n
		}
		if got >= middle*float64(r.shared.packed) {
			break
		}
		if err := lab.Sleep(ctx, nodesEvery); err != nil {
			return nil, fmt.Errorf("the pull does not get to its middle: %w", err)
		}
	}
	if r.fault == FaultLeader {
		return pulling, r.cluster.ChangeLeader(ctx)
	}
	return pulling[:len(pulling)-1], r.dying().Kill()
}
