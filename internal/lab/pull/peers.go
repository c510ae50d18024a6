// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/imageref"
	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/lab/sharing"
	"wangell.loutres.me/internal/testutil/netlab"
)

const (
	// mostPeers is the number of nodes that pull at once, at most.
	mostPeers = 3
	// peerLayers is the number of layers of the image that they pull.
	peerLayers = 10
	// peersTag is its tag.
	peersTag = "peers"
	// nodesEvery is how often nodes are asked for the image, which costs them some processor time.
	nodesEvery = 100 * time.Millisecond
	// peersTimeout bounds a pull by nodes.
	peersTimeout = 15 * time.Minute
	// middle is the part of an image that a node has received when something happens in the middle of a pull.
	middle = 0.3
)

// sharedImage is the image that nodes pull.
type sharedImage struct {
	packed int64
	digest string
	layers []string // their digests
}

// peerCase is a pull by several nodes at once.
type peerCase struct {
	nodes int
	peers bool
	fault string
}

// peerCases are the pulls of a round, and then those with faults.
func peerCases(rounds int) []peerCase {
	var all []peerCase
	for range rounds {
		for n := 1; n <= mostPeers; n++ {
			all = append(all, peerCase{n, false, ""}, peerCase{n, true, ""})
		}
	}
	for _, fault := range AllPeerFaults {
		all = append(all, peerCase{mostPeers, true, fault})
	}
	return all
}

// storePeersImage makes the image that nodes pull, of bytes that cannot be compressed, and puts it into the registry.
func (b *bench) storePeersImage(ctx context.Context, h *hub) error {
	work, err := os.MkdirTemp(b.dir, "peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var sources []source
	for i := range peerLayers {
		sources = append(sources, func(w io.Writer) error { return writeNoise(w, i, b.p.PeersSize/peerLayers) })
	}
	img, err := assemble(ctx, sources, work)
	if err != nil {
		return err
	}
	tarball := filepath.Join(work, "image.tar")
	if err := image.WriteFile(tarball, imageTag, img); err != nil {
		return err
	}
	if err := h.push(ctx, tarball, peersTag); err != nil {
		return err
	}
	stored, err := h.manifest(ctx, peersTag) // a tarball has another one
	if err != nil {
		return err
	}
	b.shared = sharedImage{packed: stored.Size + stored.Config.Size, digest: stored.Digest.String()}
	for _, l := range stored.Layers {
		b.shared.packed += l.Size
		b.shared.layers = append(b.shared.layers, l.Digest.String())
	}
	b.out.Log("image %-20s %3d layers, %7.1f MB packed", peersTag, len(stored.Layers), float64(b.shared.packed)/1e6)
	return nil
}

// writeNoise writes a layer with a file of random bytes, the same in each run.
func writeNoise(w io.Writer, layer int, size int64) error {
	out := tar.NewWriter(w)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("noise-%d", layer), Mode: 0o644, Size: size}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(layer))
	if _, err := io.CopyN(out, rand.NewChaCha8(seed), size); err != nil {
		return err
	}
	return out.Close()
}

// peers measures pulls by several nodes at once.
func (b *bench) peers(ctx context.Context) error {
	cases := b.p.cases
	if cases == nil {
		cases = peerCases(b.p.Rounds)
	}
	for i, c := range cases {
		if err := b.settle(); err != nil {
			return err
		}
		if err := b.pullByNodes(ctx, c); err != nil {
			return fmt.Errorf("pull by %d nodes (peers: %v) %s: %w", c.nodes, c.peers, c.fault, err)
		}
		b.out.Progress(i+1, len(cases))
	}
	return nil
}

// pullByNodes measures one pull, in a network of its own.
func (b *bench) pullByNodes(ctx context.Context, c peerCase) (err error) {
	network, err := netlab.New(netlab.Config{Clients: hosts + c.nodes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	h, err := b.startHub(ctx, network, b.p.peersBits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	cluster, err := sharing.Start(ctx, sharing.Config{
		Wangell: b.p.Wangell, Containerd: b.p.Containerd, Dir: b.dir, Path: b.none, Controller: network.Node,
		Nodes: network.Clients[hosts:], Registry: h.Host, Peers: c.peers,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, peersTimeout)
	defer cancel()
	run := &peerRun{
		peerCase: c, shared: b.shared, hub: h, cluster: cluster, ref: h.ref(peersTag),
		fixed: imageref.Fixed(h.ref(peersTag), b.shared.digest),
	}
	sample, err := run.measure(ctx)
	if err != nil {
		return err
	}
	b.shares = append(b.shares, sample)
	b.out.Log("peers %-3s %d nodes %-14s last %6.2f s, registry sent %.3f of the image until %6.2f s", onOff(c.peers),
		c.nodes, c.fault, sample.Last, sample.OriginRatio, sample.OriginDone)
	return nil
}

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
	s = PeerPull{Nodes: r.nodes, Peers: r.peers, Fault: r.fault}
	pulling := r.cluster.Nodes
	if r.fault == FaultGarbage || r.fault == FaultRegistryGone {
		if pulling, err = r.seed(ctx); err != nil {
			return s, err
		}
	}
	before, err := sentBy(r.hub.host)
	if err != nil {
		return s, err
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
	var sent []sentAt
	for len(pulling) > 0 {
		now, err := sentBy(r.hub.host)
		if err != nil {
			return s, err
		}
		sent = append(sent, sentAt{time.Since(begin).Seconds(), now - before})
		var left []*sharing.Node
		for _, n := range pulling {
			has, err := n.Has(ctx, r.fixed)
			if err != nil {
				return s, err
			}
			if !has {
				left = append(left, n)
				continue
			}
			s.Done = append(s.Done, time.Since(begin).Seconds())
		}
		if pulling = left; len(pulling) > 0 && lab.Sleep(ctx, nodesEvery) != nil {
			return s, fmt.Errorf("%d nodes do not have the image after %v: %w", len(pulling), time.Since(begin), ctx.Err())
		}
	}
	s.Last = s.Done[len(s.Done)-1]
	all := sent[len(sent)-1].bytes
	s.OriginRatio = float64(all) / float64(r.shared.packed)
	for _, at := range slices.Backward(sent) {
		if float64(at.bytes) < 0.99*float64(all) {
			break
		}
		s.OriginDone = at.seconds
	}
	return s, r.count(ctx, &s)
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

// seed has one node pull the image and tell the controller of it, and returns the others. With FaultGarbage its image
// is wrong afterwards.
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

// disturb waits for the middle of the pull. Then the last node dies, or the leader is another one. It returns the nodes
// that go on.
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

// sentAt is what the registry's host has sent some seconds after the beginning.
type sentAt struct {
	seconds float64
	bytes   uint64
}

// sentBy returns how many bytes a host has sent, with the headers of packets.
func sentBy(host *netlab.Namespace) (bytes uint64, err error) {
	err = host.Do(func() error {
		device, err := netlink.LinkByName(netlab.Device)
		if err == nil {
			bytes = device.Attrs().Statistics.TxBytes
		}
		return err
	})
	return bytes, err
}

// onOff is how the keys of the summary name it.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
