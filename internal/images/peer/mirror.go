// SPDX-License-Identifier: Apache-2.0

// Package peer is a node's mirror of registries. containerd asks it for the blobs of the node's images. It fetches
// them in pieces from several other nodes and the registry at once, and serves its own pieces to other nodes,
// including those of incomplete blobs. The controller's index (package blobindex) says which nodes have what; package
// swarm decides what to fetch next. For what the mirror cannot get, it answers "not found", and containerd asks the
// registry.
package peer

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"golang.org/x/time/rate"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/wire"
)

// Config configures a Mirror.
type Config struct {
	// Content is containerd's content store, with its namespace in the contexts of Run.
	Content content.Store
	// Dir is a folder for blobs until containerd has them. The mirror empties it.
	Dir string
	// Hosts is the folder in which containerd reads the settings of registries (config_path of its CRI plugin).
	Hosts string
	// Layers is the folder in which the node's wangell-snapshotter keeps packed layers (package packed), of which the
	// mirror sends parts to other nodes. Optional.
	Layers string
	// Caches are pull-through registries in the cluster, by the registry that they cache, such as "docker.io":
	// "http://cache.example:5000". They are asked first, without credentials.
	Caches map[string]string
	// Local is the loopback address for containerd, and Listen that for other nodes.
	Local, Listen netip.AddrPort
	// Rate bounds what is sent to other nodes, in bytes per second; 0 is without limit.
	Rate int64
	// Key returns the key of this node, with which grants are checked.
	Key func() wire.Key
	// Send sends to the controller.
	Send func(wire.Message)
	// Images returns the digests of all images that containerd has, by their full names.
	Images func(context.Context) (map[string]string, error)
	// Limits bound the requests in progress. Default: swarm.DefaultLimits.
	Limits swarm.Limits
	// askTimeout bounds the wait for the index. Default: the constant.
	askTimeout time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Mirror is a mirror.
type Mirror struct {
	cfg         Config
	certificate tls.Certificate
	registries  registries
	caches      *caches
	limiter     *rate.Limiter // nil: no limit
	served      chan struct{} // one element for each request of a peer
	metrics     metrics
	work        chan struct{} // has an element if there may be something to do
	scans       chan struct{} // likewise for blobs that containerd has
	group       sync.WaitGroup
	local       net.Listener
	listen      net.Listener

	mu        sync.Mutex         // guards what follows
	planned   []string           // repositories of images that the daemon pulls ahead of need
	needed    []string           // repositories of images that this node may need
	shared    map[string]sharing // both, by repository
	public    map[blobindex.Key]public
	sizes     map[blobindex.Key]uint64
	stored    map[blobindex.Key]uint64 // sizes of blobs that containerd has
	downloads map[blobindex.Key]*download
	queue     []*download // that are not complete, in the order in which they were asked for
	questions map[blobindex.Key]*question
	lazy      map[blobindex.Key]*lazyBlob
	silent    time.Time // the index did not answer: until then, snapshotters' requests do not wait for it
	unheard   bool      // a download has gone on without the index, which has not answered any since
	turned    time.Time // when the loop last looked at the downloads
	peers     map[string]*peer
	registry  int                         // requests in progress
	changes   map[blobindex.Key]wire.Blob // that were not reported
}

// forget records that containerd has removed a blob. m.mu is held.
func (m *Mirror) forget(k blobindex.Key) {
	if _, known := m.stored[k]; known {
		delete(m.stored, k)
		m.changes[k] = wire.Blob{Digest: k.Digest, State: wire.BlobGone}
		m.notify()
	}
}

// notify has the loop look for work.
func (m *Mirror) notify() {
	select {
	case m.work <- struct{}{}:
	default:
	}
}

// Scan makes the mirror look at containerd's blobs, because an image has been added or removed.
func (m *Mirror) Scan() {
	select {
	case m.scans <- struct{}{}:
	default:
	}
}

// mayShare reports whether a blob may be passed on. In a repository of which only public images are shared, these are
// public manifests and what they name. m.mu is held.
func (m *Mirror) mayShare(k blobindex.Key) bool {
	switch m.shared[k.Repository] {
	case sharedAll:
		return true
	case sharedPublic:
		p, known := m.public[k]
		return m.sizes[k] > 0 || known && p.err == nil
	}
	return false
}
