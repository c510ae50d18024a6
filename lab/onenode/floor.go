// SPDX-License-Identifier: Apache-2.0

package onenode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

// FloorSample is one start of a container without Wangell. Times are in milliseconds since just before runtime.Start.
type FloorSample struct {
	// Phases are the ends of the runtime's phases ("sandbox", "created", "started", …).
	Phases map[string]float64 `json:"phases_ms"`
	// Connected is when the connection was established, FirstByte when the first byte of the answer arrived.
	Connected float64 `json:"connected_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	// Attempts counts the attempts to connect.
	Attempts int `json:"attempts"`
	// Error is why there is no sample; empty if there is one.
	Error string `json:"error,omitempty"`
}

// Floor measures the floor. For every line read from in, it starts a pod of s through rt, polls it from the moment at
// which its container exists, does one request, stops the pod, and writes a FloorSample as a line of JSON to out. It
// returns when in ends. It must run in the network namespace of rt.
func Floor(ctx context.Context, rt runtime.Runtime, s *v1alpha1.WangellService, in io.Reader, out io.Writer) error {
	go func() { // the runtime blocks if its exits are not read
		for range rt.Exits() {
		}
	}()
	if err := rt.Prepare(ctx, s, nil); err != nil {
		return fmt.Errorf("floor: prepare %s: %w", v1alpha1.KeyOf(s), err)
	}
	lines := bufio.NewScanner(in)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		sample, err := floorSample(ctx, rt, s)
		if err != nil {
			sample.Error = err.Error()
		}
		if err := encoder.Encode(sample); err != nil {
			return fmt.Errorf("floor: write a sample: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return lines.Err()
}

// stopGrace is how long a pod may take to end. It is generous: a pod that ends by itself does not use it up.
const stopGrace = 10 * time.Second

func floorSample(ctx context.Context, rt runtime.Runtime, s *v1alpha1.WangellService) (sample FloorSample, err error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Timeout)
	defer cancel()
	sample.Phases = map[string]float64{}
	answers := make(chan probe.Polled, 1)
	var addr netip.Addr
	asked := false
	ask := func() {
		asked = true
		address := netip.AddrPortFrom(addr, uint16(s.Spec.TargetPort))
		go func() { answers <- probe.Poll(ctx, new(net.Dialer).DialContext, address) }()
	}
	begin := monotime.Now()
	pod, err := rt.Start(ctx, s, runtime.StartHooks{
		Network: func(p runtime.Pod) { addr = p.Addr },
		Phase: func(p runtime.Phase, at monotime.Time) {
			sample.Phases[string(p)] = report.Milliseconds(at.Sub(begin))
			// Before the container is created, no process can listen. Earlier attempts would only compete with the
			// start for the processor, and make the floor longer than it is.
			if p == runtime.PhaseCreated && addr.IsValid() {
				ask()
			}
		},
	})
	if err != nil {
		cancel()
		if asked {
			<-answers
		}
		return sample, fmt.Errorf("start: %w", err)
	}
	defer func() {
		if stopErr := rt.Stop(context.WithoutCancel(ctx), pod.ID, stopGrace); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("stop: %w", stopErr))
		}
	}()
	if !asked { // a runtime that does not report phases
		addr = pod.Addr
		ask()
	}
	a := <-answers
	sample.Attempts = a.Attempts
	if a.Err != nil {
		return sample, a.Err
	}
	sample.Connected = report.Milliseconds(a.Dialled.Sub(begin) + a.Timing.Connected)
	sample.FirstByte = report.Milliseconds(a.Dialled.Sub(begin) + a.Timing.FirstByte)
	return sample, nil
}

// floorClient requests samples from a process that runs Floor.
type floorClient struct {
	in  io.Writer
	out *bufio.Scanner
}

// Sample requests one sample and waits for it.
func (f *floorClient) Sample() (FloorSample, error) {
	var s FloorSample
	if _, err := io.WriteString(f.in, "\n"); err != nil {
		return s, fmt.Errorf("floor: request a sample: %w", err)
	}
	if !f.out.Scan() {
		return s, fmt.Errorf("floor: the measuring process has ended: %w", errors.Join(f.out.Err(), io.EOF))
	}
	if err := json.Unmarshal(f.out.Bytes(), &s); err != nil {
		return s, fmt.Errorf("floor: its answer %.200q: %w", strings.TrimSpace(f.out.Text()), err)
	}
	if s.Error != "" {
		return s, fmt.Errorf("floor: %s", s.Error)
	}
	return s, nil
}
