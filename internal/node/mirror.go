// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync"

	"wangell.loutres.me/internal/peer"
	"wangell.loutres.me/internal/wire"
)

// PeersConfig configures the mirror by which nodes share images (package peer).
type PeersConfig struct {
	// Port is the TCP port on Config.NodeAddr for other nodes; 0: this node shares nothing.
	Port uint16
	// LocalPort is the TCP port on the loopback address for containerd.
	LocalPort uint16
	// Dir is a folder for blobs until containerd has them, on a disk with room for the largest image.
	Dir string
	// Hosts is the folder in which containerd reads the settings of registries. The daemon adds the mirror to it.
	Hosts string
	// Caches are the cluster's caches of registries: the URL of each, by the registry in the names of images.
	Caches map[string]string
	// Layers is the folder in which the node's wangell-snapshotter keeps packed layers, of which other nodes get parts;
	// empty: there is none.
	Layers string
	// Rate bounds what is sent to other nodes, in bytes per second; 0 is without limit.
	Rate int64
}

// local is the address for containerd.
func (c PeersConfig) local() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), c.LocalPort)
}

// nodeKey is the key of this node, which may be replaced while the daemon runs.
type nodeKey struct {
	mu  sync.Mutex
	key wire.Key
}

func (k *nodeKey) get() wire.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key
}

func (k *nodeKey) set(key wire.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key = key
}

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
