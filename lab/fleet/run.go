// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/lab/wired"
)

// partTimeout is how long each part of the experiment may take until every daemon is up to date.
const partTimeout = 5 * time.Minute

// Run implements lab.Params.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	params := p.withDefaults()
	if params.controller == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		params.controller = []string{self, "fleet-controller"}
	}
	load := report.LoadAverage()
	samples, err := measure(ctx, params, out)
	if err != nil {
		return nil, err
	}
	r := newReport(samples)
	r.Time, r.Versions = time.Now(), report.MachineVersions()
	r.Params = map[string]any{
		"daemons": params.Daemons, "services": params.Services, "wakes per second": params.Rate,
		"time of wakes (s)": params.Wakes.Seconds(), "idle time measured (s)": params.Idle.Seconds(),
		"quick": params.Quick, "load average at begin": load, "load average at end": report.LoadAverage(),
	}
	return []*report.Report{r}, nil
}

// measure runs all parts.
func measure(ctx context.Context, p Params, out lab.Output) (s Samples, err error) {
	f := &fleet{params: p, out: out, wakes: make([]wake, p.Services), allKnow: make(chan struct{})}
	if _, err := rand.Read(f.key[:]); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if f.leader, err = f.startController(nil); err != nil {
		return s, err
	}
	s = Samples{Daemons: p.Daemons, Services: p.Services, Rate: p.Rate}
	for _, part := range []struct {
		name string
		run  func(context.Context, *Samples) error
	}{{"join", f.join}, {"idle", f.idle}, {"wakes", f.wake}, {"change of leader", f.changeLeader}} {
		begin := time.Now()
		if err := part.run(ctx, &s); err != nil {
			return s, fmt.Errorf("%s: %w", part.name, err)
		}
		out.Log("%s: %.1f s", part.name, time.Since(begin).Seconds())
	}
	return s, nil
}

func (f *fleet) startController(pods []runtime.Pod) (*wired.Controller, error) {
	return wired.StartController(f.params.controller, wired.ControllerConfig{
		Key: f.key[:], Daemons: f.params.Daemons, Services: f.params.Services, Pods: pods,
	})
}

// close ends everything.
func (f *fleet) close() error {
	var closing sync.WaitGroup
	for _, d := range f.daemons {
		closing.Go(func() { d.client.Close() })
	}
	closing.Wait()
	if f.leader == nil {
		return nil
	}
	return f.leader.End()
}

// await waits until all daemons have reached a milestone.
func (f *fleet) await(ctx context.Context, what string, m *milestone) error {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d daemons have %s: %w", m.count(), m.want, what, ctx.Err())
	}
}

// join starts all daemons at once.
func (f *fleet) join(ctx context.Context, s *Samples) error {
	if err := f.leader.Ask(wired.AskSync, &struct{}{}); err != nil {
		return err
	}
	g := newGathering(f.params.Daemons, 0)
	f.gathering.Store(g)
	meter, err := f.beginCost()
	if err != nil {
		return err
	}
	for n := range f.params.Daemons {
		d, err := f.startDaemon(n)
		if err != nil {
			return err
		}
		f.daemons = append(f.daemons, d)
	}
	if err := f.gathered(ctx, g, &s.Join); err != nil {
		return err
	}
	return meter.end(&s.Join.Cost)
}

// gathered waits until all daemons have gathered at a controller.
func (f *fleet) gathered(ctx context.Context, g *gathering, into *Gathering) error {
	for _, m := range []struct {
		what      string
		milestone *milestone
		times     *[]float64
	}{
		{"a session", g.connected, &into.Connected}, {"the table of services", g.table, &into.Table},
		{"the list of nodes", g.nodes, &into.Nodes}, {"the pods of all services", g.pods, &into.Pods},
	} {
		if m.milestone == g.pods && g.warm == 0 {
			continue
		}
		if err := f.await(ctx, m.what, m.milestone); err != nil {
			return err
		}
		*m.times = m.milestone.milliseconds()
	}
	return nil
}

// idle measures the fleet while nothing happens.
func (f *fleet) idle(ctx context.Context, s *Samples) error {
	if err := lab.Sleep(ctx, time.Second); err != nil { // what follows the join
		return err
	}
	meter, err := f.beginCost()
	if err != nil {
		return err
	}
	if err := lab.Sleep(ctx, f.params.Idle); err != nil {
		return err
	}
	return meter.end(&s.Idle)
}

// wake wakes services, each at another daemon.
func (f *fleet) wake(ctx context.Context, s *Samples) error {
	n := f.params.woken()
	f.wakesLeft.Store(int64(n))
	for i := range n {
		f.wakes[i].daemon = (i*7 + 3) % f.params.Daemons // never the pod's home node only
	}
	meter, err := f.beginCost()
	if err != nil {
		return err
	}
	begin := time.Now()
	for i := range n {
		if wait := time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(f.params.Rate))); wait > 0 {
			if err := lab.Sleep(ctx, wait); err != nil {
				return err
			}
		}
		if err := f.daemons[f.wakes[i].daemon].wake(i); err != nil {
			return fmt.Errorf("wake %d: %w", i, err)
		}
	}
	s.Wakes.Sent = time.Since(begin).Seconds()
	wait, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	select {
	case <-f.allKnow:
	case <-wait.Done():
		return fmt.Errorf("%d of %d wakes are not known to all daemons: %w", f.wakesLeft.Load(), n, wait.Err())
	}
	for i := range n {
		w := &f.wakes[i]
		asked := w.asked.Load()
		s.Wakes.Asker = append(s.Wakes.Asker, milliseconds(time.Duration(w.asker.Load()-asked)))
		s.Wakes.All = append(s.Wakes.All, milliseconds(time.Duration(w.all.Load()-asked)))
	}
	return meter.end(&s.Wakes.Cost)
}

// changeLeader kills the controller and has the daemons connect to another one.
func (f *fleet) changeLeader(ctx context.Context, s *Samples) error {
	var pods []runtime.Pod
	if err := f.leader.Ask(wired.AskPods, &pods); err != nil {
		return err
	}
	next, err := f.startController(pods)
	if err != nil {
		return err
	}
	f.leader.Kill()
	f.leader = next
	g := newGathering(f.params.Daemons, f.params.woken())
	f.gathering.Store(g)
	meter, err := f.beginCost()
	if err != nil {
		return err
	}
	if err := next.Ask(wired.AskSync, &struct{}{}); err != nil {
		return err
	}
	for _, d := range f.daemons {
		if err := d.client.SetServer(next.Addr); err != nil {
			return err
		}
	}
	if err := f.gathered(ctx, g, &s.Leader); err != nil {
		return err
	}
	return meter.end(&s.Leader.Cost)
}

// meter measures the cost of a part.
type meter struct {
	fleet               *fleet
	begin               time.Time
	controller, daemons wired.Usage
	counters            wire.Counters
}

func (f *fleet) beginCost() (*meter, error) {
	m := &meter{fleet: f, begin: time.Now(), counters: f.counters()}
	err := f.leader.Ask(wired.AskUsage, &m.controller)
	if err == nil {
		m.daemons, err = wired.OwnUsage()
	}
	return m, err
}

// end fills in the cost since beginCost.
func (m *meter) end(c *Cost) error {
	var controller wired.Usage
	if err := m.fleet.leader.Ask(wired.AskUsage, &controller); err != nil {
		return err
	}
	daemons, err := wired.OwnUsage()
	if err != nil {
		return err
	}
	counters, n := m.fleet.counters(), float64(m.fleet.params.Daemons)
	*c = Cost{
		Seconds: time.Since(m.begin).Seconds(), Controller: controller.CPU - m.controller.CPU,
		Daemons: daemons.CPU - m.daemons.CPU, Resident: controller.Resident,
		Sent:     float64(counters.SentBytes-m.counters.SentBytes) / n,
		Received: float64(counters.ReceivedBytes-m.counters.ReceivedBytes) / n,
	}
	return nil
}

// counters returns the bytes of all daemons together.
func (f *fleet) counters() (sum wire.Counters) {
	for _, d := range f.daemons {
		c := d.client.Counters()
		sum.SentBytes += c.SentBytes
		sum.ReceivedBytes += c.ReceivedBytes
	}
	return sum
}
