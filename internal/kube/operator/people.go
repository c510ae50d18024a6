// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/kube/access"
	"wangell.loutres.me/internal/kube/kubewatch"
	"wangell.loutres.me/internal/kube/tunnel"
)

// leaderKnown is how long a follower caches what it has read in the Lease.
const leaderKnown = time.Second

// people serves the API to users: the tunnels of all controllers end at the leading one.
type people struct {
	leader      *leader
	certificate tls.Certificate

	mu   sync.Mutex
	addr string // of the leading controller's API
	at   time.Time
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: followers pass tunnels on.
func (*people) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (p *people) Start(ctx context.Context) error {
	log := p.leader.log
	l, err := net.Listen("tcp", p.leader.cfg.APIAddress)
	if err != nil {
		return fmt.Errorf("API for people: %w: give another --api-address", err)
	}
	tunnels := &tunnel.Server{Leader: p.address, Log: log}
	api := access.New(access.Config{
		API: p.leader.client, Certificate: p.certificate, Services: p.services, Log: log,
		Version: buildinfo.Version,
		Versions: func(context.Context) map[string]string {
			return map[string]string{"controller": buildinfo.Version}
		},
	})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var both sync.WaitGroup
	both.Go(func() { cancel(tunnels.Serve(ctx, l)) })
	both.Go(func() { cancel(api.Serve(ctx, tunnels)) })
	both.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// services returns those of the controller while this process leads.
func (p *people) services() access.Services {
	c := p.leader.controller.Load()
	if c == nil || p.leader.retired.Load() != nil {
		return nil
	}
	return c
}

// address returns where the leading controller serves the API; empty if that is here.
func (p *people) address(ctx context.Context) (string, error) {
	if p.services() != nil {
		return "", nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addr != "" && time.Since(p.at) < leaderKnown {
		return p.addr, nil
	}
	name := p.leader.cfg.Lease
	lease, err := p.leader.client.CoordinationV1().Leases(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("lease %s of the leading controller: %w", name, err)
	}
	holder := lease.Spec.HolderIdentity
	switch {
	case holder == nil || *holder == "":
		return "", errors.New("no controller leads at the moment: try again")
	case *holder == p.leader.cfg.Identity:
		return "", errors.New("this controller begins to lead, or has just ceased to: try again in a moment")
	}
	addr, err := apiAddress(*holder, p.leader.cfg.APIAddress)
	if err != nil {
		return "", err
	}
	p.addr, p.at = addr, time.Now()
	return addr, nil
}

// apiAddress returns the address of the API of the leader with an identity. All controllers have the same port.
func apiAddress(identity, own string) (string, error) {
	wire, err := kubewatch.Address(identity)
	if err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(wire)
	if err != nil {
		return "", fmt.Errorf("leader %q: %w", identity, err)
	}
	_, port, err := net.SplitHostPort(own)
	if err != nil {
		return "", fmt.Errorf("address of the API %q: %w", own, err)
	}
	return net.JoinHostPort(host, port), nil
}
