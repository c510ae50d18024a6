// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/lab/wired"
)

// joinTimeout is how long all daemons may take until they know all services.
const joinTimeout = 2 * time.Minute

// wakeTimeout is how long the last wakes of a part may take.
const wakeTimeout = 30 * time.Second

// daemonsConfig configures the process of the daemons. It is the first line that it reads.
type daemonsConfig struct {
	Server   string `json:"server"` // the controller's address for daemons
	Key      []byte `json:"key"`    // master key of the wire
	Daemons  int    `json:"daemons"`
	Services int    `json:"services"`
}

// wakeRequest is a line of JSON that has services woken, each by another daemon.
type wakeRequest struct {
	First int `json:"first"` // service
	Count int `json:"count"`
	Rate  int `json:"rate"` // a second
}

// wakeAnswer is the answer.
type wakeAnswer struct {
	Times     []float64 `json:"times"` // see Part.Wakes
	Failed    int       `json:"failed"`
	Ended     int       `json:"ended"`     // sessions, since the start
	Connected int       `json:"connected"` // daemons with a session
}

// RunDaemons is the process of the daemons (`wangell-lab strangers-daemons`): it reads a daemonsConfig as one line of
// JSON, starts the daemons, answers once all know all services, and then answers wakeRequests until in ends.
func RunDaemons(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	var cfg daemonsConfig
	if err == nil {
		err = json.Unmarshal(line, &cfg)
	}
	if err != nil {
		return fmt.Errorf("daemons: read the configuration: %w", err)
	}
	f := &fleet{cfg: cfg, wakes: make([]wake, cfg.Services)}
	defer f.close()
	if err := f.join(ctx); err != nil {
		return fmt.Errorf("daemons: %w", err)
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode(struct{}{}); err != nil {
		return err
	}
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		var request wakeRequest
		if err == nil {
			err = json.Unmarshal(line, &request)
		}
		var answer wakeAnswer
		if err == nil {
			answer, err = f.wakeAll(ctx, request)
		}
		if err == nil {
			err = answers.Encode(answer)
		}
		if err != nil {
			return fmt.Errorf("daemons: %w", err)
		}
	}
}

// fleet is all daemons.
type fleet struct {
	cfg     daemonsConfig
	daemons []*daemon
	wakes   []wake // by service
	joining sync.WaitGroup
	ended   atomic.Int64
}

// daemon is the wire's client over a simulated gate.
type daemon struct {
	fleet     *fleet
	name      string
	client    *wire.Client
	knows     sync.Once
	connected atomic.Bool
}

// wake is the wake of one service.
type wake struct {
	by    string       // the node that asks
	asked atomic.Int64 // monotime.Time of the WAKE; 0 before it
	known atomic.Int64 // monotime.Time at which that node has the serving pod; 0 before it
}

// join starts the daemons and waits until all know all services.
func (f *fleet) join(ctx context.Context) error {
	for i := range f.wakes {
		f.wakes[i].by = wired.NodeName(f.asker(i))
	}
	f.joining.Add(f.cfg.Daemons)
	for n := range f.cfg.Daemons {
		d := &daemon{fleet: f, name: wired.NodeName(n)}
		ready := make(chan struct{})
		var err error
		d.client, err = wire.NewClient(wire.ClientConfig{
			Server: f.cfg.Server, Key: wire.Key(f.cfg.Key).ForNode(d.name), Node: d.name,
			First:        []wire.Message{&wire.Node{Addr: wired.NodeAddr(n)}},
			Connected:    func() { d.connected.Store(true) },
			Disconnected: func() { d.connected.Store(false); f.ended.Add(1) },
			Services: func(full bool, upserts []wire.Service, _ []netip.AddrPort) {
				if full && len(upserts) == f.cfg.Services {
					d.knows.Do(f.joining.Done)
				}
			},
			Receive: func(m wire.Message) { <-ready; d.receive(m) },
		})
		close(ready)
		if err != nil {
			return err
		}
		f.daemons = append(f.daemons, d)
	}
	joined := make(chan struct{})
	go func() { f.joining.Wait(); close(joined) }()
	select {
	case <-joined:
		return nil
	case <-time.After(joinTimeout):
		return fmt.Errorf("%d of %d daemons have a session after %v, and not all know all services", f.connected(),
			f.cfg.Daemons, joinTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// asker is the number of the daemon that wakes a service.
func (f *fleet) asker(service int) int { return (service*7 + 3) % f.cfg.Daemons }

// connected returns how many daemons have a session.
func (f *fleet) connected() (n int) {
	for _, d := range f.daemons {
		if d.connected.Load() {
			n++
		}
	}
	return n
}

// close ends all sessions.
func (f *fleet) close() {
	var closing sync.WaitGroup
	for _, d := range f.daemons {
		closing.Go(func() { _ = d.client.Close() })
	}
	closing.Wait()
}

// wakeAll wakes services at an even rate.
func (f *fleet) wakeAll(ctx context.Context, r wakeRequest) (a wakeAnswer, err error) {
	if r.First < 0 || r.Count < 1 || r.Rate < 1 || r.First+r.Count > len(f.wakes) {
		return a, fmt.Errorf("wake %+v: there are %d services", r, len(f.wakes))
	}
	begin := time.Now()
	for i := range r.Count {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(r.Rate))
		if err := lab.Sleep(ctx, time.Until(due)); err != nil {
			return a, err
		}
		if err := f.ask(r.First + i); err != nil {
			return a, err
		}
	}
	wakes := f.wakes[r.First : r.First+r.Count]
	for end := time.Now().Add(wakeTimeout); time.Now().Before(end) && !allKnown(wakes); {
		if err := lab.Sleep(ctx, 10*time.Millisecond); err != nil {
			return a, err
		}
	}
	a = wakeAnswer{Times: []float64{}, Ended: int(f.ended.Load()), Connected: f.connected()}
	for i := range wakes {
		if known := wakes[i].known.Load(); known != 0 {
			a.Times = append(a.Times, report.Milliseconds(time.Duration(known-wakes[i].asked.Load())))
		} else {
			a.Failed++
		}
	}
	return a, nil
}

func allKnown(wakes []wake) bool {
	for i := range wakes {
		if wakes[i].known.Load() == 0 {
			return false
		}
	}
	return true
}

// ask wakes a service.
func (f *fleet) ask(i int) error {
	now := monotime.Now()
	f.wakes[i].asked.Store(int64(now))
	return f.daemons[f.asker(i)].client.Send(&wire.Wake{
		Service: netip.AddrPortFrom(wired.ServiceAddr(i), wired.ServicePort), Seq: 1, SYNSeen: now, Noticed: now, Parked: 1,
	})
}

// receive handles pods as gates do, that of the home node and that of the node that asked.
func (d *daemon) receive(m wire.Message) {
	pods, ok := m.(*wire.Backends)
	if !ok {
		return
	}
	for i := range pods.Pods {
		b := &pods.Pods[i]
		if b.State == wire.PodStarting && b.Node == d.name {
			_ = d.client.Send(&wire.Listening{Service: pods.Service, PodID: b.PodID, At: monotime.Now()})
		}
		w := &d.fleet.wakes[wired.ServiceNumber(pods.Service.Addr())]
		if b.State == wire.PodServing && w.by == d.name && w.asked.Load() != 0 {
			w.known.CompareAndSwap(0, int64(monotime.Now()))
		}
	}
}
