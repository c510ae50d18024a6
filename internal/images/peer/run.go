// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"

	"wangell.loutres.me/internal/base/ownhost"
	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/readapi"
	"wangell.loutres.me/internal/wire"
)

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
		cfg: cfg, registries: newRegistries(cfg.Hosts, cfg.Local.String()), metrics: newMetrics(),
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
	if m.certificate, err = pin.NewCertificate("wangell mirror", time.Now()); err != nil {
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
		Handler: ownhost.Guard(readapi.Handler(local{m})), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		BaseContext: base,
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

// Describe implements prometheus.Collector.
func (m *Mirror) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Mirror) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.metrics.all() {
		c.Collect(ch)
	}
}
