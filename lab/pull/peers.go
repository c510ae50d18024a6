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
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/lab/sharing"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	// peerLayers is the number of layers of the image that they pull.
	peerLayers = 10
	// peersTag is its tag.
	peersTag = "peers"
	// peersTimeout bounds a pull by nodes.
	peersTimeout = 15 * time.Minute
)

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
	bits := b.p.peersBits
	if c.open {
		bits = 0
	}
	h, err := b.startHub(ctx, network, bits)
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
	b.out.Log("peers %-3s %d nodes %s: last %6.2f s, received by %6.2f s, registry sent %.3f of the image until %6.2f s; "+
		"CPU of containerd, daemons, registry %.1f %.1f %.1f s", onOff(c.peers), c.nodes, c.words(), sample.Last,
		sample.Received, sample.OriginRatio, sample.OriginDone, sample.ContainerdCPU, sample.DaemonCPU, sample.RegistryCPU)
	return nil
}
