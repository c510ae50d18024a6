// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/node/readiness"
	"wangell.loutres.me/internal/wire"
)

// probes are the readiness and startup probes of a pod that listens. They run in a goroutine of their own until the pod
// is drained, removed, or its process ends. The service's mu guards everything.
type probes struct {
	cancel       context.CancelFunc
	machine      *readiness.Machine
	listened     monotime.Time // when the pod began to listen; zero if it served before
	answer       string        // of the last probe that failed
	listens      string        // where the pod listens, if that probe's connection was refused
	lastReported string        // the answer last sent to the controller
	reportedAt   time.Time
}

// answerPause is the shortest time between two messages about changed answers of one pod's probe.
const answerPause = time.Second

// unready reports whether a pod listens and must get no new flows. s.mu is held.
func (p *pod) unready() bool { return p.probes != nil && !p.probes.machine.Ready() }

// unready reports whether a pod listens and must get no new flows at any port of the service. s.mu is held.
func (s *service) unready(id uint64) bool {
	p := s.first().pods[id]
	return p != nil && p.unready()
}

// endProbes stops the probes of a pod, if there are any. s.mu is held.
func (p *pod) endProbes() {
	if p.probes != nil {
		p.probes.cancel()
		p.probes = nil
	}
}

// startProbes begins to probe a pod that has listened since the given time; zero if it serves already. A pod whose
// probe cannot run stays unready, and the controller learns why. s.mu is held.
func (d *daemon) startProbes(s *service, p *pod, listened monotime.Time) {
	spec, err := readiness.Decode(p.probe)
	if err != nil { // of a newer version
		d.log.Error("cannot probe a pod: it is served without", "service", s.name, "pod", p.id, "error", err)
		if !s.serves(p.id) {
			d.serveReady(s, p.id)
		}
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	began := p.began
	serving := s.serves(p.id)
	if serving {
		began = time.Now()
	}
	q := &probes{cancel: cancel, machine: readiness.NewMachine(spec, began, serving), listened: listened}
	p.probes = q
	if !serving {
		q.reportUnready(d, s, p)
	}
	prober := &readiness.Prober{Spec: spec, Addr: p.addr.Addr(), Dial: dialerIn(p.netns)}
	if exec := d.execIn(p.runtimeID); exec != nil {
		prober.Exec = exec
	}
	d.tasks.Go(func() { d.probe(ctx, s, p, q, prober) })
}

// execIn returns a function that runs commands in a pod, or nil if that is impossible.
func (d *daemon) execIn(pod string) func(context.Context, string, []string) (int, []byte, error) {
	exec := d.cfg.Exec
	if exec == nil && d.cri != nil {
		exec = d.cri.Exec
	}
	if exec == nil {
		return nil
	}
	return func(ctx context.Context, container string, command []string) (int, []byte, error) {
		return exec(ctx, pod, container, command)
	}
}

// probe probes a pod until ctx ends.
func (d *daemon) probe(ctx context.Context, s *service, p *pod, q *probes, prober *readiness.Prober) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.mu.Lock()
		next, starting := q.machine.Next(), q.machine.Starting()
		s.mu.Unlock()
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		d.awaitThawed(ctx, p.id)
		started := time.Now()
		ok, answer := prober.Probe(ctx, starting)
		if ctx.Err() != nil {
			return
		}
		if d.freezing.isFrozen(p.id) {
			continue // a program that stands still does not answer
		}
		s.mu.Lock()
		if p.probes == q {
			d.probed(s, p, started, ok, answer)
		}
		s.mu.Unlock()
	}
}

// probed handles the result of a pod's probe. s.mu is held.
func (d *daemon) probed(s *service, p *pod, started time.Time, ok bool, answer string) {
	q := p.probes
	if !ok && (answer != q.answer || time.Since(q.reportedAt) >= answerPause) {
		q.answer, q.listens = answer, ""
		if strings.Contains(answer, syscall.ECONNREFUSED.Error()) {
			q.listens = listensOn(p.netns)
		}
	}
	switch q.machine.Answered(started, time.Now(), ok) {
	case readiness.Ready:
		q.answer, q.listens, q.lastReported = "", "", ""
		d.serveReady(s, p.id)
	case readiness.Unready:
		d.log.Warn("a pod gets no new flows: its readinessProbe fails", "service", s.name, "pod", p.id, "answer", answer)
		if !d.stopServing(s, p.id) {
			return
		}
		q.listened = 0
		d.fronts.notify()
		q.reportUnready(d, s, p)
	case readiness.Failed:
		d.log.Warn("a pod has not started in time: its startupProbe fails", "service", s.name, "pod", p.id, "answer", answer)
		q.reportUnready(d, s, p)
	default:
		if !q.machine.Ready() && q.report() != q.lastReported && time.Since(q.reportedAt) >= answerPause {
			q.reportUnready(d, s, p)
		}
	}
}

// serveReady gives a pod that has become ready new flows at the ports at which it listens. s.mu is held.
func (d *daemon) serveReady(s *service, id uint64) {
	for _, port := range s.ports() {
		if p := port.pods[id]; p != nil && (p.listened || s.group == nil) {
			d.serve(port, p)
			d.send(&wire.Listening{Service: port.addr, PodID: id, At: p.since})
		}
	}
}

// stopServing stops new flows to a pod at all ports of its service. It reports whether that worked. s.mu is held.
func (d *daemon) stopServing(s *service, id uint64) bool {
	for _, port := range s.ports() {
		p := port.pods[id]
		if p == nil || !p.serving {
			continue
		}
		if err := d.gate.Drain(port.addr, id); err != nil {
			d.log.Error("cannot stop new flows to a pod", "service", s.name, "pod", id, "error", err)
			return false
		}
		p.serving = false
	}
	return true
}

// reportUnready reports the state of an unready pod to the controller. s.mu is held.
func (q *probes) reportUnready(d *daemon, s *service, p *pod) {
	if q.machine.Ready() {
		return
	}
	q.lastReported, q.reportedAt = q.report(), time.Now()
	d.send(&wire.Unready{
		Service: s.addr, PodID: p.id, At: q.listened, Answer: q.lastReported, Failed: q.machine.Failed(),
	})
}

// report is the answer of the last probe that failed and, if its connection was refused, where the pod listens.
func (q *probes) report() string {
	if q.listens == "" {
		return q.answer
	}
	return text.Shorten(q.answer, wire.MaxReason-len(q.listens)) + q.listens
}

// maxListens is the size in bytes of what listensOn returns.
const maxListens = wire.MaxReason / 2

// listensOn says where the sockets of a network namespace listen, as the end of a probe's answer; empty if that is not
// known.
func listensOn(path string) string {
	diag, err := openSockDiag(path)
	if err != nil {
		return ""
	}
	defer diag.close()
	at, err := diag.listening()
	if err != nil || len(at) == 0 {
		return ""
	}
	names := make([]string, len(at))
	for i, a := range at {
		names[i] = a.String()
	}
	return text.Shorten("; the pod listens on "+strings.Join(names, ", "), maxListens)
}

// dialerIn returns a function that connects from the network namespace at a path.
func dialerIn(path string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			return nil, fmt.Errorf("opening the network namespace of the pod: %w", err)
		}
		defer ns.Close()
		// A dial to an address without a name makes its socket on the calling thread.
		err = inNetns(ns, func() (err error) {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}
