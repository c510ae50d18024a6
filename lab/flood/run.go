// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/netlab"
)

// Numbers of the clients of the network.
const (
	nearClient = iota
	attackClient
	farClient
	clients
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	params, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	load := report.LoadAverage()
	samples, versions, settings := Samples{}, report.MachineVersions(), map[string]any{}
	if slices.Contains(params.Parts, PartMachine) {
		var programs map[string]string
		if samples, programs, err = runOwn(ctx, params, out); err != nil {
			return nil, err
		}
		maps.Copy(versions, programs)
	}
	if slices.Contains(params.Parts, PartCluster) {
		peers, err := runPeers(ctx, params, out)
		if err != nil {
			return nil, err
		}
		samples.Peers, settings = peers.peers, peers.settings
		maps.Copy(versions, peers.versions)
	}
	r := newReport(samples)
	r.Time, r.Versions, r.Params = time.Now(), versions, settings
	maps.Copy(r.Params, map[string]any{
		"forged SYNs per second asked for": params.Rate, "time of each flood (s)": params.Time.Seconds(),
		"sleeping services attacked together": params.Cold, "long round trip (ms)": report.Milliseconds(params.RTT),
		"wakeProof of the flooded sleeping services": params.WakeProof,
		"quick":                 params.Quick,
		"load average at begin": load, "load average at end": report.LoadAverage(),
	})
	return []*report.Report{r}, nil
}

// runOwn attacks an instance of its own on this machine. It returns the versions of the instance's programs.
func runOwn(ctx context.Context, params Params, out lab.Output) (s Samples, versions map[string]string, err error) {
	instance, err := onenode.NewInstanceOn(params.Wangell, netlab.Config{Clients: clients})
	if err != nil {
		return s, nil, err
	}
	defer func() {
		if closeErr := instance.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	e := &experiment{Instance: instance, params: params, out: out}
	if err := e.measure(ctx); err != nil {
		return s, nil, err
	}
	versions, err = instance.Control.Versions(ctx)
	return e.samples, versions, err
}

// experiment is one run.
type experiment struct {
	*onenode.Instance
	params   Params
	out      lab.Output
	attacker *attacker
	address  map[string]netip.AddrPort // by name
	samples  Samples
}

// measure runs all parts.
func (e *experiment) measure(ctx context.Context) (err error) {
	if err := e.LoadImage(ctx, ""); err != nil {
		return err
	}
	if err := e.Start(ctx, manifest(e.params.Cold, e.params.WakeProof)); err != nil {
		return err
	}
	if err := e.learn(ctx); err != nil {
		return err
	}
	if e.attacker, err = newAttacker(e.Net, e.Net.Clients[attackClient]); err != nil {
		return err
	}
	far, err := newDelay(e.Net.Clients[farClient], e.Net.Node, netlab.DefaultServices, e.params.RTT)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, far.Close()) }()
	warm, one := []netip.AddrPort{e.address[warmName]}, []netip.AddrPort{e.address[oneName]}
	var many []netip.AddrPort
	for i := range e.params.Cold {
		many = append(many, e.address[coldName(i)])
	}
	parts := []struct {
		name string
		run  func() error
	}{
		{"calm", func() error { return e.useWarm(ctx, nil, &e.samples.Calm) }},
		{"sleeping services", func() error { return e.wake(ctx, calmNames(e.params.Cold), &e.samples.CalmMany) }},
		{"flood of a warm service", func() error { return e.useWarm(ctx, warm, &e.samples.Warm) }},
		{"flood of a cold service", func() error { return e.useCold(ctx, one, []string{oneName}, &e.samples.One) }},
		{"flood of cold services", func() error { return e.useCold(ctx, many, coldNames(len(many)), &e.samples.Many) }},
		{"vanished clients", func() error { return e.vanish(ctx) }},
		{"scan", func() error { return e.scan(ctx) }},
	}
	for i, part := range parts {
		begin := time.Now()
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		e.out.Log("%s: %.1f s", part.name, time.Since(begin).Seconds())
		e.out.Progress(i+1, len(parts))
	}
	return nil
}

// learn learns the addresses of all services, and waits until those that run serve.
func (e *experiment) learn(ctx context.Context) error {
	return e.Until(ctx, func(ctx context.Context) error {
		services, err := e.Control.Status(ctx)
		if err != nil {
			return err
		}
		e.address = map[string]netip.AddrPort{}
		for _, s := range services {
			if s.Service.Spec.MinReplicas > 0 && s.Serving == 0 {
				return fmt.Errorf("service %s has no pod yet", s.Service.Name)
			}
			addr, err := netip.ParseAddr(s.Service.Status.LoadBalancerIP)
			if err != nil {
				return fmt.Errorf("service %s: %w", s.Service.Name, err)
			}
			e.address[s.Service.Name] = netip.AddrPortFrom(addr, uint16(s.Service.Spec.Port))
		}
		return nil
	})
}

// attack floods services while f runs.
func (e *experiment) attack(ctx context.Context, services []netip.AddrPort, p *Part, f func(context.Context)) error {
	if len(services) == 0 {
		ctx, cancel := context.WithTimeout(ctx, e.params.Time)
		defer cancel()
		f(ctx)
		return nil
	}
	return e.attacker.during(ctx, target{services, e.Net.Node, netlab.Device}, e.params, p, f)
}

// useWarm has clients use the warm service and the other one during an attack.
func (e *experiment) useWarm(ctx context.Context, attacked []netip.AddrPort, p *Part) error {
	var near, far, other requests
	err := e.attack(ctx, attacked, p, func(ctx context.Context) {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() { near.repeat(ctx, e.Net.Clients[nearClient], e.address[warmName]) })
			group.Go(func() { far.repeat(ctx, e.Net.Clients[farClient], e.address[warmName]) })
		}
		group.Go(func() { other.repeat(ctx, e.Net.Clients[nearClient], e.address[otherName]) })
		group.Wait()
	})
	p.Near, p.Far, p.Other = near.r, far.r, other.r
	return err
}

// useCold attacks sleeping services. In the middle of the attack it counts the pods that forged SYNs have started, and
// has one client use each of the services.
func (e *experiment) useCold(ctx context.Context, attacked []netip.AddrPort, names []string, p *Part) error {
	var other requests
	var countErr error
	err := e.attack(ctx, attacked, p, func(attack context.Context) {
		var group sync.WaitGroup
		group.Go(func() { other.repeat(attack, e.Net.Clients[nearClient], e.address[otherName]) })
		select {
		case <-time.After(e.params.Time / 2):
		case <-attack.Done():
		}
		p.Started, countErr = e.started(ctx, names)
		countErr = errors.Join(countErr, e.wake(ctx, names, p))
		group.Wait()
	})
	p.Other = other.r
	return errors.Join(err, countErr)
}

// wake has one client use each of the services, all at once: near and distant ones in turn.
func (e *experiment) wake(ctx context.Context, names []string, p *Part) error {
	var near, far requests
	var group sync.WaitGroup
	for i, name := range names {
		if i%2 == 0 || len(names) == 1 {
			group.Go(func() { near.one(ctx, e.Net.Clients[nearClient], e.address[name]) })
		} else {
			group.Go(func() { far.one(ctx, e.Net.Clients[farClient], e.address[name]) })
		}
	}
	group.Wait()
	p.Near, p.Far = near.r, far.r
	return ctx.Err()
}

// started counts the services that have or had a pod.
func (e *experiment) started(ctx context.Context, names []string) (n int, err error) {
	services, err := e.Control.Status(ctx)
	if err != nil {
		return 0, err
	}
	of := map[string]bool{}
	for _, name := range names {
		of[name] = true
	}
	for _, s := range services {
		if of[s.Service.Name] && (s.LastWake != nil || len(s.Pods) > 0) {
			n++
		}
	}
	return n, nil
}

// vanish lets clients of the warm service vanish, and has others use it and another one meanwhile and afterwards.
func (e *experiment) vanish(ctx context.Context) error {
	p := &e.samples.Vanish
	var near, far, other requests
	use, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	group.Go(func() { near.repeat(use, e.Net.Clients[nearClient], e.address[warmName]) })
	group.Go(func() { far.repeat(use, e.Net.Clients[farClient], e.address[warmName]) })
	group.Go(func() { other.repeat(use, e.Net.Clients[nearClient], e.address[otherName]) })
	err := vanish(ctx, e.Net.Clients[attackClient], e.address[warmName], e.params.Vanished)
	if err == nil {
		err = lab.Sleep(ctx, e.params.Time) // time for sweeps, and for counts to arrive
	}
	stop()
	group.Wait()
	p.Near, p.Far, p.Other = near.r, far.r, other.r
	if err != nil {
		return err
	}
	services, err := e.Control.Status(ctx)
	for _, s := range services {
		if s.Service.Name == warmName {
			e.samples.VanishedLeft = int(s.Traffic.OpenFlows)
		}
	}
	e.samples.Vanished = e.params.Vanished
	return err
}

// scan scans the whole range of service addresses, and counts which sleeping services that has woken.
func (e *experiment) scan(ctx context.Context) error {
	e.samples.Scanned = scanServices
	for range scanPasses {
		pass := ScanPass{Woken: map[string]int{}}
		var err error
		begin := time.Now()
		if pass.Sent, err = e.attacker.scan(ctx, netlab.DefaultServices); err != nil {
			return err
		}
		pass.Seconds = time.Since(begin).Seconds()
		if err := lab.Sleep(ctx, 2*time.Second); err != nil { // time for wakes that have begun
			return err
		}
		for _, proof := range scanProofs {
			if pass.Woken[string(proof)], err = e.started(ctx, scanNames(proof)); err != nil {
				return err
			}
		}
		e.samples.Scans = append(e.samples.Scans, pass)
	}
	return nil
}
