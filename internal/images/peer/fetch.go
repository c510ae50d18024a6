// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/wire"
)

// peer returns the name of a peer for package swarm, and remembers it. m.mu is held.
func (m *Mirror) peer(at wire.Mirror) string {
	id := at.Addr.String() + " " + hex.EncodeToString(at.Fingerprint[:])
	if m.peers[id] != nil {
		return id
	}
	for old, p := range m.peers {
		if len(m.peers) < maxPeers {
			break
		}
		if p.busy == 0 && time.Now().After(p.notBefore) {
			p.client.CloseIdleConnections()
			delete(m.peers, old)
		}
	}
	pin := pin.Checked(func(sum [32]byte) error {
		if sum != at.Fingerprint {
			return fmt.Errorf("the certificate of %v is not the one that its node reported to the controller", at.Addr)
		}
		return nil
	})
	pin.Certificates = append(pin.Certificates, m.certificate)
	m.peers[id] = &peer{at: at, client: &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: pin, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: stallTimeout,
			IdleConnTimeout: idleTimeout / 2, MaxIdleConnsPerHost: m.cfg.Limits.PerPeer,
			DialContext: dialer.DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return id
}

// fromRegistry fetches a piece from the registry.
func (m *Mirror) fromRegistry(d *download, piece int) {
	err := m.receive(d, piece, fromRegistry, func(ctx context.Context, offset, length uint64) (io.ReadCloser, error) {
		return m.registries.open(ctx, d.key, d.manifest, offset, length)
	})
	m.mu.Lock()
	m.registry--
	m.mu.Unlock()
	if failed(d, err) {
		m.metrics.failed.WithLabelValues(fromRegistry).Inc()
		m.registries.failed(d.key.Repository, err, time.Now())
		m.cfg.Log.Info("the registry does not send a piece", "repository", d.key.Repository, "error", err)
	}
	m.settle(d, piece, "", err)
}

// failed reports whether the source caused an error, rather than the end of a download or its file.
func failed(d *download, err error) bool {
	var own *fileError
	return err != nil && d.ctx.Err() == nil && !errors.As(err, &own)
}

// fromPeer fetches a piece from a peer.
func (m *Mirror) fromPeer(d *download, piece int, p *peer, o offer) {
	err := m.askPeer(d, piece, p, o)
	m.mu.Lock()
	p.busy--
	if errors.Is(err, errBusy) {
		p.free = time.Now().Add(swarm.BusyPause)
	} else if failed(d, err) {
		m.metrics.failed.WithLabelValues(fromPeer).Inc()
		p.notBefore = time.Now().Add(peerPause)
		m.cfg.Log.Info("a peer does not send a piece", "peer", p.at.Addr, "repository", d.key.Repository, "error", err)
	}
	m.mu.Unlock()
	m.settle(d, piece, o.peer, err)
}

// askPeer fetches a piece from a peer into the file of a download.
func (m *Mirror) askPeer(d *download, piece int, p *peer, o offer) error {
	return m.receive(d, piece, fromPeer, p.opener(d.key, o))
}

// receive writes a piece into the file of a download. If a response ends early, another request continues where it
// ended, as long as each brings some bytes.
func (m *Mirror) receive(d *download, piece int, source string, open opener) error {
	offset, length := swarm.Bounds(d.size, piece)
	for {
		n, err := m.receivePart(d, offset, length, source, open)
		var own *fileError
		if err == nil || source != fromRegistry || n == 0 || d.ctx.Err() != nil || errors.As(err, &own) {
			return err
		}
		offset, length = offset+n, length-n
	}
}

// receivePart writes a range into the file of a download, and returns how much of it was received.
func (m *Mirror) receivePart(d *download, offset, length uint64, source string, open opener) (uint64, error) {
	ctx, stall := newStall(d.ctx)
	defer stall.end()
	body, err := open(ctx, offset, length)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	return m.copy(ctx, stall, fileWriter{io.NewOffsetWriter(d.file, int64(offset))}, body, length, source)
}

// copy copies length bytes of a response, whose context is ctx, and returns the number of copied bytes.
func (m *Mirror) copy(ctx context.Context, s *stall, to io.Writer, body io.Reader, length uint64, source string) (
	uint64, error,
) {
	counted := readerFunc(func(b []byte) (int, error) {
		s.timer.Reset(stallTimeout)
		n, err := body.Read(b)
		m.metrics.received.WithLabelValues(source).Add(float64(n))
		return n, err
	})
	n, err := io.Copy(to, io.LimitReader(counted, int64(length)))
	switch {
	case ctx.Err() != nil:
		return uint64(n), context.Cause(ctx)
	case err != nil:
		return uint64(n), err
	case uint64(n) != length:
		return uint64(n), fmt.Errorf("%d bytes of %d: %w", n, length, io.ErrUnexpectedEOF)
	}
	return uint64(n), nil
}

// stall cancels a request that receives nothing for a while.
type stall struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// newStall returns a context for a request. Until the response begins, the request has twice the time.
func newStall(ctx context.Context) (context.Context, *stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &stall{cancel: cancel, timer: time.AfterFunc(2*stallTimeout, func() {
		cancel(fmt.Errorf("no answer for %v", 2*stallTimeout))
	})}
}

func (s *stall) end() {
	s.timer.Stop()
	s.cancel(nil)
}

// fileWriter writes to the file of a download.
type fileWriter struct{ io.Writer }

// Write implements io.Writer.
func (w fileWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil {
		err = &fileError{fmt.Errorf("keep a blob: %w", err)}
	}
	return n, err
}

type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
