// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/netip"
	"path/filepath"

	"wangell.loutres.me/internal/images/peer"
	"wangell.loutres.me/internal/images/prefetch"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

// newMirror returns the mirror of this node; nil if it is off or cannot listen, in which case images are pulled
// without it.
func (d *daemon) newMirror() *peer.Mirror {
	c := d.cfg.Peers
	if c.Port == 0 || !d.cfg.NodeAddr.IsValid() {
		return nil
	}
	d.key.set(d.cfg.Keys.Node)
	store, _ := d.images.store.Content(d.ctx)
	m, err := peer.New(peer.Config{
		Content: store, Dir: filepath.Join(c.Dir, "blobs"), Hosts: c.Hosts, Caches: c.Caches, Layers: c.Layers,
		Local:  c.local(),
		Listen: netip.AddrPortFrom(d.cfg.NodeAddr, c.Port), Rate: c.Rate, Key: d.key.get,
		Send:   func(m wire.Message) { d.send(m) },
		Images: d.images.store.Digests, Log: d.log,
	})
	if err != nil {
		d.log.Error("this node does not share images with others", "error", err)
		return nil
	}
	if err := peer.InstallHosts(c.Hosts, c.local()); err != nil {
		d.log.Warn("containerd may not ask this node's mirror", "error", err)
	}
	return m
}

// newImages returns the images of the container runtime at an endpoint.
func (d *daemon) newImages(endpoint string, send func(wire.Message)) (*images, error) {
	store, err := cri.OpenImages(endpoint)
	if err != nil {
		return nil, err
	}
	i := &images{store: store, log: d.log, send: send}
	i.keeper = prefetch.New(prefetch.Config{
		Store: store, Log: d.log,
		Report: func(r wire.ImageReport) {
			send(&wire.ImageReports{Images: []wire.ImageReport{r}})
			if i.mirror != nil && r.State == wire.ImagePresent {
				i.mirror.Scan()
			}
		},
		Progress: func(p wire.ImagePulled) { send(&p) },
	})
	return i, nil
}

// runMirror runs the mirror until ctx ends.
func (d *daemon) runMirror(ctx context.Context) {
	_, ctx = d.images.store.Content(ctx)
	d.images.mirror.Run(ctx)
}

// removeHosts removes the daemon's settings for containerd, because Wangell is being uninstalled.
func (d *daemon) removeHosts() {
	if dir := d.cfg.Peers.Hosts; dir != "" {
		if err := peer.RemoveHosts(dir); err != nil {
			d.log.Warn("containerd goes on asking for this node's mirror, and then the registry", "error", err)
		}
	}
}
