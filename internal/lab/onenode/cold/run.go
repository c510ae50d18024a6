// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/lab/onenode"
	"wangell.loutres.me/internal/lab/probe"
	"wangell.loutres.me/internal/lab/report"
	"wangell.loutres.me/internal/testutil/netlab"
)

// maxPause is the longest pause before a sample. Pauses are random, so that samples do not lock onto a periodic task.
const maxPause = 300 * time.Millisecond

// The names of the services that are measured: one balances connections, and the other one requests.
const (
	connectionService = "cold"
	requestService    = "cold-request"
)

// namespace is that of both.
const namespace = "default"

// service is the one that balances connections.
func (p Params) service() v1alpha1.WangellService {
	return v1alpha1.WangellService{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: connectionService, Namespace: namespace},
		Spec:       v1alpha1.WangellServiceSpec{Image: p.Tag, Port: 80, TargetPort: p.Port, IdleTimeout: 3600},
	}
}

// manifestOf returns a service as YAML, without the status, which users must not set.
func manifestOf(s v1alpha1.WangellService) ([]byte, error) {
	spec := map[string]any{"image": s.Spec.Image, "port": s.Spec.Port, "targetPort": s.Spec.TargetPort,
		"idleTimeout": s.Spec.IdleTimeout}
	if s.Spec.Balancing != nil {
		spec["balancing"] = s.Spec.Balancing
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": s.APIVersion, "kind": s.Kind,
		"metadata": map[string]string{"name": s.Name, "namespace": s.Namespace}, "spec": spec,
	})
}

// manifest returns the services that are measured.
func (p Params) manifest() ([]byte, error) {
	s := p.service()
	all, err := manifestOf(s)
	if err != nil || p.Envoy == "" {
		return all, err
	}
	s.Name = requestService
	s.Spec.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	other, err := manifestOf(s)
	return slices.Concat(all, []byte("---\n"), other), err
}

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	params, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	instance, err := onenode.NewInstance(params.Wangell, netlab.DefaultServices)
	if err != nil {
		return nil, err
	}
	if params.Envoy != "" {
		instance.Flags = append(instance.Flags, "--envoy", params.Envoy)
	}
	defer func() {
		if closeErr := instance.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	r, err := measure(ctx, params, instance, out)
	if err != nil {
		return nil, err
	}
	return []*report.Report{r}, nil
}

func measure(
	ctx context.Context, p Params, instance *onenode.Instance, out lab.Output,
) (_ *report.Report, err error) {
	if err := instance.LoadImage(ctx, p.Image); err != nil {
		return nil, err
	}
	manifest, err := p.manifest()
	if err != nil {
		return nil, err
	}
	if err := instance.Start(ctx, manifest); err != nil {
		return nil, err
	}
	floor, err := instance.StartFloor(p.floor, p.service())
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopErr := floor.Stop(); stopErr != nil {
			err = errors.Join(err, stopErr)
		}
	}()
	s := &sampler{Instance: instance, floor: floor}
	if s.connection, err = instance.AddressOf(ctx, connectionService); err != nil {
		return nil, err
	}
	if p.Envoy != "" {
		if s.request, err = instance.AddressOf(ctx, requestService); err != nil {
			return nil, err
		}
		if err := s.awaitEnvoy(ctx); err != nil {
			return nil, err
		}
	}
	loadBefore := report.LoadAverage()
	if err := s.run(ctx, p.Requests, out); err != nil {
		return nil, err
	}
	versions := report.MachineVersions()
	programs, err := instance.Control.Versions(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(versions, programs)
	r := newReport(s.samples, s.retransmits)
	r.Time, r.Versions = time.Now(), versions
	r.Params = map[string]any{
		"requests": p.Requests, "uncounted requests before": 1, "image": p.Tag, "target port": p.Port,
		"longest random pause before a sample (ms)": report.Milliseconds(maxPause),
		"floor: pause between attempts (ms)":        report.Milliseconds(probe.PollInterval),
		"load average at begin":                     loadBefore, "load average at end": report.LoadAverage(),
	}
	return r, nil
}

// sampler takes the samples.
type sampler struct {
	*onenode.Instance
	floor       *onenode.FloorProcess
	connection  netip.AddrPort
	request     netip.AddrPort // invalid if requests are not measured
	samples     Samples
	retransmits uint64
}

// awaitEnvoy makes requests until one has come through Envoy, which counts it.
func (s *sampler) awaitEnvoy(ctx context.Context) error {
	err := s.Until(ctx, func(ctx context.Context) error {
		at := s.request.String()
		if _, err := probe.Request(ctx, s.Net.Client().Dialer().DialContext, at, at); err != nil {
			return err
		}
		all, err := s.Control.Status(ctx)
		if err != nil {
			return err
		}
		for _, service := range all {
			for _, p := range service.Pods {
				if p.Traffic.Requests > 0 {
					return nil
				}
			}
		}
		return errors.New("no request has come through Envoy")
	})
	return errors.Join(err, s.Sleep(ctx, namespace+"/"+requestService))
}

// run takes samples of all kinds in turn. The first of each kind is not counted.
func (s *sampler) run(ctx context.Context, requests int, out lab.Output) error {
	for i := range requests + 1 {
		if err := s.each(ctx); err != nil {
			return err
		}
		if i == 0 {
			s.samples, s.retransmits = Samples{}, 0
			continue
		}
		out.Progress(i, requests)
	}
	return nil
}

// each takes a sample of each kind.
func (s *sampler) each(ctx context.Context) error {
	if err := pause(ctx); err != nil {
		return err
	}
	floor, err := s.floor.Sample()
	if err != nil {
		return err
	}
	s.samples.Floor = append(s.samples.Floor, floor)
	cold, err := s.cold(ctx, connectionService, s.connection.String())
	if err != nil {
		return err
	}
	s.samples.Cold = append(s.samples.Cold, cold)
	if !s.request.IsValid() {
		return nil
	}
	request, err := s.cold(ctx, requestService, s.request.String())
	if err != nil {
		return err
	}
	s.samples.Request = append(s.samples.Request, request)
	return nil
}

// cold does one cold request. A lost request is a sample; an error ends the experiment.
func (s *sampler) cold(ctx context.Context, service, address string) (sample Sample, err error) {
	name := namespace + "/" + service
	if err := s.Sleep(ctx, name); err != nil {
		return sample, err
	}
	if err := pause(ctx); err != nil {
		return sample, err
	}
	client := s.Net.Client()
	before, err := client.SYNRetransmits()
	if err != nil {
		return sample, err
	}
	t, requestErr := probe.Request(ctx, client.Dialer().DialContext, address, address)
	if ctx.Err() != nil {
		return sample, ctx.Err()
	}
	sample = Sample{Connected: report.Milliseconds(t.Connected), FirstByte: report.Milliseconds(t.FirstByte),
		Done: report.Milliseconds(t.Done)}
	if requestErr != nil {
		sample.Error = requestErr.Error()
	}
	after, err := client.SYNRetransmits()
	if err != nil {
		return sample, err
	}
	s.retransmits += after - before
	if requestErr == nil {
		// The client may get its answer before the instance learns that the pod listens. Sleep would cancel the wake.
		if err := s.Until(ctx, func(ctx context.Context) error { return s.Woken(ctx, name) }); err != nil {
			return sample, err
		}
	}
	// Once the service sleeps again, the record of the wake is complete.
	if err := s.Sleep(ctx, name); err != nil {
		return sample, err
	}
	sample.Wake, err = s.LastWake(ctx, name)
	return sample, err
}

// pause waits for a random time up to maxPause.
func pause(ctx context.Context) error { return lab.Sleep(ctx, rand.N(maxPause)) }
