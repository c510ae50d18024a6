// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/lab/wired"
	"wangell.loutres.me/test/testutil/netlab"
)

// sources are the source addresses of strangers. No host of the experiment has one, and no packet leaves it.
var sources = netip.MustParsePrefix("10.47.0.0/16")

// serverPort is the controller's port.
const serverPort = 7946

// pause is the time between two parts.
const pause = time.Second

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	params := p.withDefaults()
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if params.controller == nil {
		params.controller = []string{self, "fleet-controller"}
	}
	if params.daemons == nil {
		params.daemons = []string{self, "strangers-daemons"}
	}
	load := report.LoadAverage()
	samples, err := measure(ctx, params, out)
	if err != nil {
		return nil, err
	}
	r := newReport(samples)
	r.Time, r.Versions = time.Now(), report.MachineVersions()
	r.Params = map[string]any{
		"daemons": params.Daemons, "strangers' datagrams per second asked for": params.Rate,
		"time of each part (s)": params.Time.Seconds(), "rounds": params.Rounds, "wakes per second": params.Wakes,
		"quick": params.Quick, "load average at begin": load, "load average at end": report.LoadAverage(),
	}
	return []*report.Report{r}, nil
}

// experiment is one run.
type experiment struct {
	params     Params
	net        *netlab.Net
	frames     [][]byte
	controller *wired.Controller
	daemons    *wired.Process
	woken      int // services
}

// measure runs all parts.
func measure(ctx context.Context, p Params, out lab.Output) (s Samples, err error) {
	e := &experiment{params: p}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.start(); err != nil {
		return s, err
	}
	s.Daemons = p.Daemons
	for i := range 2 * p.Rounds {
		// Calm, flood, flood, calm: what changes slowly concerns both alike.
		part, answer, err := e.part(ctx, i%4 == 1 || i%4 == 2)
		if err != nil {
			return s, fmt.Errorf("part %d: %w", i+1, err)
		}
		s.Parts, s.Ended, s.Connected = append(s.Parts, part), answer.Ended, answer.Connected
		out.Log("part %d: flood %t, %.0f datagrams/s, median of a wake %.2f ms, %d sessions ended", i+1, part.Flood,
			float64(part.Sent)/part.Seconds, report.Median(part.Wakes), answer.Ended)
		out.Progress(i+1, 2*p.Rounds)
		if err := lab.Sleep(ctx, pause); err != nil {
			return s, err
		}
	}
	return s, nil
}

// start starts the network, the controller and the daemons.
func (e *experiment) start() (err error) {
	if e.net, err = netlab.New(netlab.Config{Clients: 1}); err != nil {
		return err
	}
	server := netip.AddrPortFrom(e.net.Node.Addr, serverPort)
	from, err := hardwareAddr(e.net.Clients[0])
	if err != nil {
		return err
	}
	to, err := hardwareAddr(e.net.Node)
	if err != nil {
		return err
	}
	strange, err := payloads(e.params.Daemons)
	if err != nil {
		return err
	}
	e.frames = frames(strange, from, to, sources, server)
	var key wire.Key
	_, _ = rand.Read(key[:]) // never fails (crypto/rand)
	e.controller, err = wired.StartController(inside(e.net.Node, e.params.controller), wired.ControllerConfig{
		Listen: server.String(), Key: key[:], Daemons: e.params.Daemons, Services: e.params.services(),
	})
	if err != nil {
		return err
	}
	if err := e.controller.Ask(wired.AskSync, &struct{}{}); err != nil {
		return err
	}
	e.daemons, err = wired.Start("daemons", inside(e.net.Clients[0], e.params.daemons), daemonsConfig{
		Server: server.String(), Key: key[:], Daemons: e.params.Daemons, Services: e.params.services(),
	}, &struct{}{})
	return err
}

// inside returns the command line that runs another one in a namespace.
func inside(ns *netlab.Namespace, argv []string) []string {
	return ns.Command(context.Background(), argv...).Args
}

// close ends everything.
func (e *experiment) close() (err error) {
	if e.daemons != nil {
		err = errors.Join(err, e.daemons.End())
	}
	if e.controller != nil {
		err = errors.Join(err, e.controller.End())
	}
	if e.net != nil {
		err = errors.Join(err, e.net.Close())
	}
	return err
}

// part wakes services, during a flood or not.
func (e *experiment) part(ctx context.Context, strangers bool) (p Part, a wakeAnswer, err error) {
	p.Flood = strangers
	request, err := json.Marshal(wakeRequest{First: e.woken, Count: e.params.part(), Rate: e.params.Wakes})
	if err != nil {
		return p, a, err
	}
	e.woken += e.params.part()
	before, used, err := e.totals()
	if err != nil {
		return p, a, err
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.params.Time)
	defer cancel()
	var group sync.WaitGroup
	var floodErr error
	if strangers {
		group.Go(func() { p.Sent, floodErr = flood(ctx, e.net.Link, e.net.Node.Host, e.frames, e.params.Rate) })
	}
	err = e.daemons.Ask(string(request), &a)
	group.Wait()
	p.Seconds = time.Since(begin).Seconds()
	if err = errors.Join(err, floodErr); err != nil {
		return p, a, err
	}
	after, usedAfter, err := e.totals()
	p.Read = int(after["Udp.InDatagrams"] - before["Udp.InDatagrams"])
	p.Dropped = int(after["Udp.RcvbufErrors"] - before["Udp.RcvbufErrors"])
	p.Wakes, p.Failed, p.Controller = a.Times, a.Failed, usedAfter.CPU-used.CPU
	return p, a, err
}

// totals returns the controller's usage and the counters of its network namespace.
func (e *experiment) totals() (counters map[string]uint64, used wired.Usage, err error) {
	if err = e.controller.Ask(wired.AskUsage, &used); err == nil {
		counters, err = e.net.Node.Counters()
	}
	return counters, used, err
}

// hardwareAddr returns the MAC address of a host.
func hardwareAddr(host *netlab.Namespace) (addr net.HardwareAddr, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(netlab.Device)
		if err == nil {
			addr = link.Attrs().HardwareAddr
		}
		return err
	})
	return addr, err
}
