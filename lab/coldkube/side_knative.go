// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"time"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/knative"
	"wangell.loutres.me/lab/probe"
)

// windowValue is the shortest value that Knative allows. It makes the way back to zero short, and changes nothing about
// a cold request.
const windowValue = "6s"

// knativeSide is a Knative service behind Kourier.
type knativeSide struct {
	service knative.Service
}

func newKnativeSide(c *cluster.Cluster, image string, token bool) *knativeSide {
	return &knativeSide{service: knative.Service{Cluster: c, Name: knativeName(token), Image: image, Token: token,
		Annotations: map[string]string{knative.Window: windowValue}}}
}

func (s *knativeSide) name() string {
	if s.service.Token {
		return SideKnative
	}
	return SideKnativeNoToken
}

func (s *knativeSide) prepare(ctx context.Context) error { return s.service.Create(ctx) }

func (s *knativeSide) cold(ctx context.Context) (Sample, error) {
	at := time.Now()
	t, err := s.warm(ctx)
	if ctx.Err() != nil {
		return Sample{}, ctx.Err()
	}
	return newSample(at, t, err), nil
}

func (s *knativeSide) warm(ctx context.Context) (probe.Timing, error) {
	return s.service.Cluster.Request(ctx, s.service.Address, s.service.Host)
}

// rest does nothing: Knative scales to zero by itself.
func (s *knativeSide) rest(context.Context) error { return nil }
