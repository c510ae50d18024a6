// SPDX-License-Identifier: Apache-2.0

package lab

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
	"syscall"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// FloorPoll is how long Floor waits between two attempts to connect.
const FloorPoll = 500 * time.Microsecond

// FloorSample is one start of a container without Wangell in the way. Times are in milliseconds since just before
// runtime.Start.
type FloorSample struct {
	// Phases are the ends of the runtime's phases ("sandbox", "created", "started", …).
	Phases map[string]float64 `json:"phases_ms"`
	// Connected is when the connection stood, FirstByte when the answer's first byte came.
	Connected float64 `json:"connected_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	// Attempts counts the attempts to connect.
	Attempts int `json:"attempts"`
	// Error tells why there is no sample; empty if there is one.
	Error string `json:"error,omitempty"`
}

// Floor measures the floor: for every line that it reads from in, it starts a pod of s through rt, tries to connect to it
// every FloorPoll from the moment at which its container exists, does one request, stops the pod, and writes a FloorSample as a line of JSON to out. It returns
// when in ends. It must run in the network namespace of rt.
func Floor(ctx context.Context, rt runtime.Runtime, s *v1alpha1.WangellService, in io.Reader, out io.Writer) error {
	go func() { // nobody else reads it
		for range rt.Exits() {
		}
	}()
	if err := rt.Prepare(ctx, s, nil); err != nil {
		return fmt.Errorf("floor: prepare %s: %w", runtime.KeyOf(s), err)
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

// answer is what became of a floor sample's connection.
type answer struct {
	dialled  monotime.Time
	timing   Timing
	attempts int
	err      error
}

func floorSample(ctx context.Context, rt runtime.Runtime, s *v1alpha1.WangellService) (sample FloorSample, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sample.Phases = map[string]float64{}
	answers := make(chan answer, 1)
	var addr netip.Addr
	asked := false
	ask := func() {
		asked = true
		go func() {
			answers <- poll(ctx, new(net.Dialer).DialContext, netip.AddrPortFrom(addr, uint16(s.Spec.TargetPort)))
		}()
	}
	begin := monotime.Now()
	pod, err := rt.Start(ctx, s, runtime.StartHooks{
		Network: func(p runtime.Pod) { addr = p.Addr },
		Phase: func(p runtime.Phase, at monotime.Time) {
			sample.Phases[string(p)] = ms(at.Sub(begin))
			// Before that there is no process that could listen. Attempts until then would only take the processor
			// from the start, and so make the floor longer than it is.
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
		// The grace is generous: a pod that ends by itself does not use it up.
		if stopErr := rt.Stop(context.WithoutCancel(ctx), pod.ID, 10*time.Second); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("stop: %w", stopErr))
		}
	}()
	if !asked { // a runtime that does not tell phases
		addr = pod.Addr
		ask()
	}
	a := <-answers
	sample.Attempts = a.attempts
	if a.err != nil {
		return sample, a.err
	}
	sample.Connected = ms(a.dialled.Sub(begin) + a.timing.Connected)
	sample.FirstByte = ms(a.dialled.Sub(begin) + a.timing.FirstByte)
	return sample, nil
}

// poll requests again and again until it is not refused.
func poll(ctx context.Context, dial dialFunc, address netip.AddrPort) answer {
	ticks := time.NewTicker(FloorPoll)
	defer ticks.Stop()
	for a := (answer{}); ; {
		a.attempts++
		a.dialled = monotime.Now()
		a.timing, a.err = request(ctx, dial, address.String(), address.String())
		if !errors.Is(a.err, syscall.ECONNREFUSED) {
			return a
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			a.err = fmt.Errorf("nothing listens at %s: %w", address, ctx.Err())
			return a
		}
	}
}

// floorClient asks a process that runs Floor.
type floorClient struct {
	in  io.Writer
	out *bufio.Scanner
}

// sample has one sample taken.
func (f *floorClient) sample() (FloorSample, error) {
	var s FloorSample
	if _, err := io.WriteString(f.in, "\n"); err != nil {
		return s, fmt.Errorf("floor: ask for a sample: %w", err)
	}
	if !f.out.Scan() {
		return s, fmt.Errorf("floor: the process that measures it ended: %w", errors.Join(f.out.Err(), io.EOF))
	}
	if err := json.Unmarshal(f.out.Bytes(), &s); err != nil {
		return s, fmt.Errorf("floor: its answer %.200q: %w", strings.TrimSpace(f.out.Text()), err)
	}
	if s.Error != "" {
		return s, fmt.Errorf("floor: %s", s.Error)
	}
	return s, nil
}
