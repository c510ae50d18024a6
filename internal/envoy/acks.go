// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// acks tracks which version of the pods the connected Envoys have.
type acks struct {
	log *slog.Logger

	mu       sync.Mutex
	expected uint64 // version of the latest pods
	sessions map[*session]uint64
	changed  chan struct{} // closed and replaced when one of the above changes
}

func newAcks(log *slog.Logger) acks {
	return acks{log: log, sessions: map[*session]uint64{}, changed: make(chan struct{})}
}

// update changes the state and wakes those that wait.
func (a *acks) update(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	close(a.changed)
	a.changed = make(chan struct{})
}

// expect notes that there is a new version of the pods, which is about to be sent.
func (a *acks) expect(version uint64) { a.update(func() { a.expected = version }) }

// end forgets an Envoy that is gone.
func (a *acks) end(s *session) { a.update(func() { delete(a.sessions, s) }) }

// await waits until all connected Envoys have the version of the pods that is the latest now.
func (a *acks) await(ctx context.Context) error {
	a.mu.Lock()
	want := a.expected
	for {
		behind := false
		for _, has := range a.sessions {
			behind = behind || has < want
		}
		changed := a.changed
		a.mu.Unlock()
		if !behind {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		a.mu.Lock()
	}
}

// session follows the stream of one Envoy. Its methods are called by one goroutine.
type session struct {
	acks      *acks
	connected func(Proxy) error // returns once the Envoy may have its resources
	known     bool
	pods      map[string]uint64 // versions of pods that were sent, by nonce
}

// OnDeltaStreamOpen does nothing: the first request says who asks.
func (s *session) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed does nothing: the caller of the handler forgets the session.
func (s *session) OnDeltaStreamClosed(int64, *core.Node) {}

// OnStreamDeltaRequest notes what Envoy has taken over, and logs what it refuses.
func (s *session) OnStreamDeltaRequest(_ int64, r *discovery.DeltaDiscoveryRequest) error {
	if !s.known && r.GetNode() != nil {
		s.known = true
		if err := s.connected(proxyOf(r.GetNode())); err != nil {
			return err
		}
	}
	if e := r.GetErrorDetail(); e != nil {
		s.acks.log.Error("Envoy refuses a part of its configuration", "type", r.GetTypeUrl(), "error", e.GetMessage())
	}
	version, sent := s.pods[r.GetResponseNonce()]
	if sent {
		delete(s.pods, r.GetResponseNonce())
		s.acks.update(func() { s.acks.sessions[s] = max(s.acks.sessions[s], version) })
	}
	return nil
}

// OnStreamDeltaResponse notes which pods are sent.
func (s *session) OnStreamDeltaResponse(_ int64, _ *discovery.DeltaDiscoveryRequest,
	r *discovery.DeltaDiscoveryResponse) {
	if r.GetTypeUrl() != resource.EndpointType {
		return
	}
	if version, err := strconv.ParseUint(r.GetSystemVersionInfo(), 10, 64); err == nil {
		s.pods[r.GetNonce()] = version
	}
}

// proxyOf returns what an Envoy's node says of it; the address is invalid if it says nothing.
func proxyOf(n *core.Node) Proxy {
	fields := n.GetMetadata().GetFields()
	addr, _ := netip.ParseAddr(fields[addrKey].GetStringValue())
	created, _ := time.Parse(time.RFC3339Nano, fields[createdKey].GetStringValue())
	return Proxy{
		Addr: addr, Netns: fields[netnsKey].GetStringValue(), Pod: fields[podKey].GetStringValue(), Created: created,
		Transparent: fields[transparentKey].GetStringValue() == "true",
	}
}
