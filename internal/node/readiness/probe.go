// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Probe runs the readinessProbe once, or the startupProbe if the pod is starting. answer is what it said, for users; it
// has at most MaxAnswer bytes.
func (p *Prober) Probe(ctx context.Context, starting bool) (ok bool, answer string) {
	probe := p.Spec.Probe
	if starting {
		probe = p.Spec.Startup
	}
	timeout := time.Duration(probe.TimeoutSeconds) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ok, answer, err := p.run(ctx, probe)
	switch {
	case err != nil && (errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil):
		ok, answer = false, fmt.Sprintf("%s: no answer within %s", kind(probe), timeout)
	case err != nil:
		ok, answer = false, fmt.Sprintf("%s: %v", kind(probe), err)
	default:
		answer = kind(probe) + ": " + answer
	}
	if starting {
		answer = "startupProbe: " + answer
	}
	return ok, tidy(answer)
}

func (p *Prober) run(ctx context.Context, probe *corev1.Probe) (bool, string, error) {
	switch {
	case probe.HTTPGet != nil:
		return p.httpGet(ctx, probe.HTTPGet)
	case probe.GRPC != nil:
		return p.grpc(ctx, probe.GRPC)
	case probe.Exec != nil:
		return p.exec(ctx, probe.Exec.Command)
	case probe.TCPSocket != nil:
		conn, err := p.Dial(ctx, "tcp", p.target(probe.TCPSocket.Host, probe.TCPSocket.Port.IntVal))
		if err != nil {
			return false, "", err
		}
		return true, "connected", conn.Close()
	}
	return false, "", errors.New("has no handler that this daemon supports")
}
