// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"time"
)

// site is where the experiment runs.
type site interface {
	// target makes the service of a mode, with all its pods, whose answers cost some processor time.
	target(ctx context.Context, mode string, work time.Duration) (target, error)
	// describe adds parameters, and returns versions.
	describe(ctx context.Context, params map[string]any) (map[string]string, error)
	// Close removes everything.
	Close() error
}

// target is the service of a mode.
type target interface {
	// endpoint returns what clients ask, once the service answers.
	endpoint(ctx context.Context) (endpoint, error)
	// envoy returns what the Envoys of the mode have used so far.
	envoy(ctx context.Context) (EnvoyUse, error)
	// remove removes its pods, if that is needed for others to be measured.
	remove(ctx context.Context) error
}
