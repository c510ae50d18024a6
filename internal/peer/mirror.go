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
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"

	"wangell.loutres.me/internal/blobindex"
	"wangell.loutres.me/internal/enrolment"
	"wangell.loutres.me/internal/image/readapi"
	"wangell.loutres.me/internal/swarm"
	"wangell.loutres.me/internal/wire"
)

const (
	// headerTimeout bounds the time for a TLS handshake and a request's header, and idleTimeout that between requests.
	headerTimeout = 5 * time.Second
	idleTimeout   = 30 * time.Second
	// maxConns bounds the connections of peers.
	maxConns = 256
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
	peers     map[string]*peer
	registry  int                         // requests in progress
	changes   map[blobindex.Key]wire.Blob // that were not reported
}

// New makes a mirror. It listens at once, and serves once it runs.
func New(cfg Config) (_ *Mirror, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.askTimeout == 0 {
		cfg.askTimeout = askTimeout
	}
	if cfg.Limits == (swarm.Limits{}) {
		cfg.Limits = swarm.DefaultLimits()
	}
	m := &Mirror{
		cfg: cfg, registries: registries{hosts: cfg.Hosts, self: cfg.Local.String()}, metrics: newMetrics(),
		served: make(chan struct{}, swarm.MaxServed), work: make(chan struct{}, 1), scans: make(chan struct{}, 1),
		shared: map[string]sharing{}, public: map[blobindex.Key]public{},
		sizes: map[blobindex.Key]uint64{}, stored: map[blobindex.Key]uint64{},
		downloads: map[blobindex.Key]*download{}, questions: map[blobindex.Key]*question{},
		lazy: map[blobindex.Key]*lazyBlob{}, peers: map[string]*peer{},
		changes: map[blobindex.Key]wire.Blob{},
	}
	if cfg.Rate > 0 {
		m.limiter = rate.NewLimiter(rate.Limit(cfg.Rate), sendAtOnce)
	}
	if m.caches, err = newCaches(cfg.Caches); err != nil {
		return nil, err
	}
	if m.certificate, err = enrolment.NewCertificate("wangell mirror", time.Now()); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(cfg.Dir); err != nil {
		return nil, fmt.Errorf("empty the folder of the mirror: %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the mirror: %w", err)
	}
	if m.local, err = net.Listen("tcp", cfg.Local.String()); err != nil {
		return nil, fmt.Errorf("mirror for containerd: %w", err)
	}
	if m.listen, err = net.Listen("tcp", cfg.Listen.String()); err != nil {
		m.local.Close()
		return nil, fmt.Errorf("mirror for other nodes: %w", err)
	}
	return m, nil
}

// Run serves and fetches until ctx ends. ctx has containerd's namespace.
func (m *Mirror) Run(ctx context.Context) {
	base := func(net.Listener) context.Context { return ctx }
	servers := []*http.Server{{
		Handler: readapi.Handler(local{m}), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, BaseContext: base,
	}, {
		Handler: http.HandlerFunc(m.servePeer), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, BaseContext: base,
		// A map without entries turns HTTP/2 off: pieces are large, and each has a connection of its own.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:     slog.NewLogLogger(m.cfg.Log.Handler(), slog.LevelDebug),
	}}
	listeners := []net.Listener{m.local, tls.NewListener(netutil.LimitListener(m.listen, maxConns), &tls.Config{
		Certificates: []tls.Certificate{m.certificate}, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
	})}
	for i, s := range servers {
		m.group.Go(func() {
			if err := s.Serve(listeners[i]); ctx.Err() == nil {
				m.cfg.Log.Error("the mirror has stopped serving", "address", listeners[i].Addr(), "error", err)
			}
		})
	}
	m.group.Go(func() { m.scan(ctx) })
	m.loop(ctx)
	for _, s := range servers {
		s.Close()
	}
	m.mu.Lock()
	for _, d := range m.downloads {
		m.drop(d, context.Canceled)
	}
	m.mu.Unlock()
	m.group.Wait()
	m.caches.close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		p.client.CloseIdleConnections()
	}
}

// forget records that containerd no longer has a blob. m.mu is held.
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

// keyOf returns the key of a blob; ok is false for digests other than SHA-256.
func keyOf(repository string, d digest.Digest) (k blobindex.Key, ok bool) {
	text, ok := strings.CutPrefix(string(d), "sha256:")
	sum, err := hex.DecodeString(text)
	if !ok || err != nil || len(sum) != len(k.Digest) {
		return k, false
	}
	return blobindex.Key{Repository: repository, Digest: [32]byte(sum)}, true
}

// digestOf returns the digest of a key.
func digestOf(k blobindex.Key) digest.Digest {
	return digest.NewDigestFromBytes(digest.SHA256, k.Digest[:])
}
