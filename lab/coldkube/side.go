// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"time"

	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

// side is one of the compared systems.
type side interface {
	name() string
	// prepare makes the service. It returns once the service can be asked.
	prepare(ctx context.Context) error
	// cold does one request while there is no pod. A lost request is a sample, not an error.
	cold(ctx context.Context) (Sample, error)
	// warm does one more request.
	warm(ctx context.Context) (probe.Timing, error)
	// rest sends the service to zero. Pods may be left when it returns.
	rest(ctx context.Context) error
}

// newSample makes a sample of a request.
func newSample(at time.Time, t probe.Timing, err error) Sample {
	s := Sample{At: at, Connected: report.Milliseconds(t.Connected), FirstByte: report.Milliseconds(t.FirstByte),
		Done: report.Milliseconds(t.Done)}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}
