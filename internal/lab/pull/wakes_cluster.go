// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/imageref"
	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/lab/probe"
	"wangell.loutres.me/internal/lab/sharing"
	"wangell.loutres.me/internal/testutil/netlab"
)

const (
	// besideTag is the tag of an image of besideSize bytes in the repository of the image that is woken. Both nodes are
	// to have it: a mirror shares only repositories of which its node is to have an image, and a service with
	// imagePull {when: Wake} wants none.
	besideTag  = "beside"
	besideSize = 1 << 20
	// clusterNodes is the number of nodes of the cluster whose first wake is measured.
	clusterNodes = 2
	// woken is the place of the service that is woken among those of the cluster.
	woken = 2
)

// storeBeside puts the image with besideTag into the registry.
func (b *bench) storeBeside(ctx context.Context, h *hub) error {
	work, err := os.MkdirTemp(b.dir, "beside-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	img, err := assemble(ctx, []source{func(w io.Writer) error { return writeNoise(w, 0, besideSize) }}, work)
	if err != nil {
		return err
	}
	tarball := filepath.Join(work, "image.tar")
	if err := image.WriteFile(tarball, imageTag, img); err != nil {
		return err
	}
	return h.push(ctx, tarball, besideTag)
}

// wakeInCluster measures a first wake on a node without the image, beside a node that has it.
func (b *bench) wakeInCluster(ctx context.Context, round int, kind string) error {
	return b.withHub(ctx, clusterNodes, func(network *netlab.Net, h *hub) error {
		return b.wakeBeside(ctx, network, h, round, kind)
	})
}

// wakeBeside is wakeInCluster in a network with the registry.
func (b *bench) wakeBeside(ctx context.Context, network *netlab.Net, h *hub, round int, kind string) (err error) {
	c, err := sharing.Start(ctx, sharing.Config{
		Wangell: b.p.Wangell, Containerd: b.p.Containerd, Dir: b.dir,
		Path:       filepath.Dir(b.p.Containerd) + string(filepath.ListSeparator) + os.Getenv("PATH"), // its shim, and runc
		Controller: network.Node, Nodes: network.Clients[hosts:], Registry: h.Host, Peers: kind == Peers,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	waking, size, err := b.fillOther(ctx, h, c, kind == Peers)
	if err != nil {
		return err
	}
	c.RunPodsOn(waking)
	if err := b.settle(); err != nil {
		return err
	}
	origin := traffic{host: h.host, sent: true}
	if err := look([]*traffic{&origin}, 0); err != nil {
		return err
	}
	address := c.Address(woken).String()
	dial := network.Clients[requester].Dialer().DialContext
	t, failed := probe.RequestWithin(ctx, wakeTimeout, dial, address, address)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := look([]*traffic{&origin}, t.FirstByte); err != nil {
		return err
	}
	w := Wake{Round: round, Kind: kind, FirstByte: t.FirstByte.Seconds(), OriginRatio: float64(origin.total()) / size}
	if failed != nil {
		w.Error = failed.Error()
	}
	if kind == Peers {
		if w.FromPeers, err = waking.Metric(ctx, `wangell_image_mirror_received_bytes_total{source="peer"}`); err != nil {
			return err
		}
	}
	b.raw.Wakes = append(b.raw.Wakes, w)
	b.out.Log("wake %-9s %7.3f s, registry sent %.3f of the image %s", w.Kind, w.FirstByte, w.OriginRatio, w.Error)
	return nil
}

// fillOther gives a cluster three services: one whose image a node is to have, one whose image both are to have, and
// the one that is woken, with the image of the first. It returns once the nodes have their images, and share them if
// there are peers, with the node that lacks the image of the first and the packed size of that image.
func (b *bench) fillOther(ctx context.Context, h *hub, c *sharing.Cluster, peers bool) (waking *sharing.Node,
	size float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	big, err := h.manifest(ctx, original)
	if err != nil {
		return nil, 0, err
	}
	beside, err := h.manifest(ctx, besideTag)
	if err != nil {
		return nil, 0, err
	}
	for _, l := range big.Layers {
		size += float64(l.Size)
	}
	if err := c.SetServices(
		sharing.Service{Name: "holder", Image: h.ref(original), Nodes: 1, Port: port},
		sharing.Service{Name: "beside", Image: h.ref(besideTag), Port: port},
		sharing.Service{Name: "model", Image: h.ref(original), OnWake: true, Port: port, WakeTimeout: wakeTimeout},
	); err != nil {
		return nil, 0, err
	}
	for {
		waking = nil
		holders := 0
		for _, n := range c.Nodes {
			blobs := beside.blobs()
			has, err := n.Has(ctx, imageref.Fixed(h.ref(original), big.Digest.String()))
			if err != nil {
				return nil, 0, err
			}
			if has {
				blobs += big.blobs()
				holders++
			}
			ready, err := n.Has(ctx, imageref.Fixed(h.ref(besideTag), beside.Digest.String()))
			if err != nil {
				return nil, 0, err
			}
			if ready && peers {
				shared, err := n.Metric(ctx, "wangell_image_mirror_shared_blobs")
				if err != nil {
					return nil, 0, err
				}
				ready = int(shared) >= blobs
			}
			switch {
			case !ready:
				holders = -len(c.Nodes)
			case !has:
				waking = n
			}
		}
		if holders == len(c.Nodes)-1 {
			return waking, size, nil
		}
		if lab.Sleep(ctx, nodesEvery) != nil {
			return nil, 0, fmt.Errorf("one of %d nodes does not have its images, or does not share them: %w",
				len(c.Nodes), ctx.Err())
		}
	}
}
