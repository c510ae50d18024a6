// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

// serviceRange is the range of service addresses.
var serviceRange = netip.MustParsePrefix("10.46.64.0/18")

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) ([]*report.Report, error) {
	params, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	var samples []Sample
	load := report.LoadAverage()
	sizes := params.sizes()
	for i, n := range sizes {
		s, err := measure(ctx, params, n)
		if err != nil {
			return nil, fmt.Errorf("%d services: %w", n, err)
		}
		samples = append(samples, s)
		out.Progress(i+1, len(sizes))
	}
	r := newReport(samples)
	r.Time, r.Versions = time.Now(), report.MachineVersions()
	r.Params = map[string]any{
		"services at most": params.Services, "idle time measured (s)": params.Idle.Seconds(), "quick": params.Quick,
		"load average at begin": load, "load average at end": report.LoadAverage(),
	}
	return []*report.Report{r}, nil
}

// measure starts an instance with n services.
func measure(ctx context.Context, p Params, n int) (_ Sample, err error) {
	s := Sample{Services: n}
	instance, err := onenode.NewInstance(p.Wangell, serviceRange)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, instance.Close()) }()
	if err := instance.LoadImage(ctx, ""); err != nil {
		return s, err
	}
	begin := time.Now()
	if err := instance.Start(ctx, manifest(n)); err != nil {
		return s, err
	}
	s.Start = time.Since(begin).Seconds()
	daemon, err := instance.Child("daemon")
	if err != nil {
		return s, err
	}
	processes := map[int]*Usage{daemon: &s.Daemon, instance.PID(): &s.Controller}
	if err := measureIdle(ctx, p.Idle, processes); err != nil {
		return s, err
	}
	services, err := instance.Control.Status(ctx)
	if err != nil {
		return s, err
	}
	if len(services) != n {
		return s, fmt.Errorf("the instance has %d services, want %d", len(services), n)
	}
	last := services[n-1].Service
	address := fmt.Sprintf("%s:%d", last.Status.LoadBalancerIP, last.Spec.Port)
	t, err := probe.Request(ctx, instance.Net.Client().Dialer().DialContext, address, address)
	s.Cold = report.Milliseconds(t.FirstByte)
	return s, err
}

// manifest returns the manifest of n services.
func manifest(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: s%05d}\n"+
			"spec: {image: %q, targetPort: 8080, port: 80, idleTimeout: 3600}\n---\n", i, image.HelloTag)
	}
	return b.Bytes()
}
