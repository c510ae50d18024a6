// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/netlab"
)

// maxPause is the longest pause before a sample. Pauses are random, so that samples do not lock onto a periodic task.
const maxPause = 300 * time.Millisecond

// service is what is measured.
func (p Params) service() v1alpha1.WangellService {
	return v1alpha1.WangellService{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "cold", Namespace: "default"},
		Spec:       v1alpha1.WangellServiceSpec{Image: p.Tag, Port: 80, TargetPort: p.Port, IdleTimeout: 3600},
	}
}

// manifestOf returns a service as YAML, without the status, which users must not set.
func manifestOf(s v1alpha1.WangellService) ([]byte, error) {
	return yaml.Marshal(map[string]any{
		"apiVersion": s.APIVersion, "kind": s.Kind,
		"metadata": map[string]string{"name": s.Name, "namespace": s.Namespace},
		"spec": map[string]any{"image": s.Spec.Image, "port": s.Spec.Port, "targetPort": s.Spec.TargetPort,
			"idleTimeout": s.Spec.IdleTimeout},
	})
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
	manifest, err := manifestOf(p.service())
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
	address, err := instance.Address(ctx)
	if err != nil {
		return nil, err
	}
	s := &sampler{Instance: instance, floor: floor, name: "default/cold", address: address.String()}
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
	name        string
	address     string
	samples     Samples
	retransmits uint64
}

// run takes samples of both kinds in turn. The first of each kind is not counted.
func (s *sampler) run(ctx context.Context, requests int, out lab.Output) error {
	for i := range requests + 1 {
		if err := s.both(ctx); err != nil {
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

func (s *sampler) both(ctx context.Context) error {
	if err := pause(ctx); err != nil {
		return err
	}
	floor, err := s.floor.Sample()
	if err != nil {
		return err
	}
	s.samples.Floor = append(s.samples.Floor, floor)
	if err := s.Sleep(ctx, s.name); err != nil {
		return err
	}
	if err := pause(ctx); err != nil {
		return err
	}
	cold, err := s.cold(ctx)
	if err != nil {
		return err
	}
	s.samples.Cold = append(s.samples.Cold, cold)
	return nil
}

// cold does one cold request. A lost request is a sample; an error ends the experiment.
func (s *sampler) cold(ctx context.Context) (sample Sample, err error) {
	client := s.Net.Client()
	before, err := client.SYNRetransmits()
	if err != nil {
		return sample, err
	}
	t, requestErr := probe.Request(ctx, client.Dialer().DialContext, s.address, s.address)
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
		if err := s.Until(ctx, func(ctx context.Context) error { return s.Woken(ctx, s.name) }); err != nil {
			return sample, err
		}
	}
	// Once the service sleeps again, the record of the wake is complete.
	if err := s.Sleep(ctx, s.name); err != nil {
		return sample, err
	}
	sample.Wake, err = s.LastWake(ctx, s.name)
	return sample, err
}

// pause waits for a random time up to maxPause.
func pause(ctx context.Context) error { return lab.Sleep(ctx, rand.N(maxPause)) }
