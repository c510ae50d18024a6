// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/sharing"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	// clusterNodes is the number of nodes of the cluster whose first wake is measured.
	clusterNodes = 2
	// woken is the index of the service that is woken, among the services of the cluster.
	woken = 1
)

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

// fillOther gives a cluster two services with the same image: one whose image a node is to have, and the one that is
// woken. It returns once the node has the image, and shares it if there are peers, with the other node and the packed
// size of the image.
func (b *bench) fillOther(ctx context.Context, h *hub, c *sharing.Cluster, peers bool) (waking *sharing.Node,
	size float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	m, err := h.manifest(ctx, original)
	if err != nil {
		return nil, 0, err
	}
	for _, l := range m.Layers {
		size += float64(l.Size)
	}
	if err := c.SetServices(
		sharing.Service{Name: "holder", Image: h.ref(original), Nodes: 1, Port: port},
		sharing.Service{Name: "model", Image: h.ref(original), OnWake: true, Port: port, WakeTimeout: wakeTimeout},
	); err != nil {
		return nil, 0, err
	}
	for {
		holders := 0
		for _, n := range c.Nodes {
			has, err := n.Has(ctx, imageref.Fixed(h.ref(original), m.Digest.String()))
			if err != nil {
				return nil, 0, err
			}
			if has && peers {
				shared, err := n.Metric(ctx, "wangell_image_mirror_shared_blobs")
				if err != nil {
					return nil, 0, err
				}
				has = int(shared) >= m.blobs()
			}
			if has {
				holders++
			} else {
				waking = n
			}
		}
		if holders == len(c.Nodes)-1 {
			return waking, size, nil
		}
		if lab.Sleep(ctx, nodesEvery) != nil {
			return nil, 0, fmt.Errorf("none of %d nodes has the image, or shares it: %w", len(c.Nodes), ctx.Err())
		}
	}
}
