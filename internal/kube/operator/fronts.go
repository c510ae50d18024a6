// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/kube/kubewatch"
)

const (
	// frontsPause is the time between two looks at the nodes with a daemon.
	frontsPause = time.Second
	// frontsSettle is how long a node may have no Envoy before that is told: it starts after the daemon, and an update
	// or a restart takes a moment.
	frontsSettle = 5 * time.Second
	// namedNodes is the most nodes that a message names.
	namedNodes = 3
)

// fronts describes the Envoys of the nodes, which balance requests.
type fronts struct {
	watched bool   // Config.Fronts is set
	reason  string // of v1alpha1.ConditionRequestsBalanced; empty: not known yet
	message string // which nodes have none; empty if all have one
}

// frontWatch compares the nodes that have an Envoy with those that have a daemon.
type frontWatch struct {
	client kubernetes.Interface
	at     Name // of the Service of the Envoys
	log    *slog.Logger
	nodes  func() map[string]netip.Addr // those with a daemon
	tell   func(context.Context, fronts) error
}

// run calls tell whenever its result has changed, until ctx ends.
func (w *frontWatch) run(ctx context.Context) {
	var following sync.WaitGroup
	defer following.Wait()
	serving := make(chan []string)
	e := &kubewatch.Endpoints{Slices: w.client.DiscoveryV1().EndpointSlices(w.at.Namespace), Name: w.at.Name, Log: w.log}
	following.Go(func() {
		e.FollowNodes(ctx, func(nodes []string) {
			select {
			case serving <- nodes:
			case <-ctx.Done():
			}
		})
	})
	var with []string
	var last fronts
	known, judge := false, newFrontJudge(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case with = <-serving:
			known = true
		case <-time.After(frontsPause):
		}
		if !known {
			continue
		}
		next := judge.look(w.nodes(), with, time.Now())
		if next == last {
			continue
		}
		if err := w.tell(ctx, next); err != nil {
			w.log.Warn("conditions may not tell which nodes have no Envoy; tried again", "error", err)
			continue
		}
		last = next
	}
}

// frontJudge remembers since when nodes have had no Envoy.
type frontJudge struct {
	began time.Time
	since map[string]time.Time
}

func newFrontJudge(now time.Time) *frontJudge {
	return &frontJudge{began: now, since: map[string]time.Time{}}
}

// look describes the Envoys of nodes, of which some have one. Nothing is known before daemons had time to connect.
func (j *frontJudge) look(nodes map[string]netip.Addr, with []string, now time.Time) fronts {
	for name := range j.since {
		if _, there := nodes[name]; !there {
			delete(j.since, name)
		}
	}
	var without []string
	for name := range nodes {
		if slices.Contains(with, name) {
			delete(j.since, name)
			continue
		}
		if _, known := j.since[name]; !known {
			j.since[name] = now
		}
		if now.Sub(j.since[name]) >= frontsSettle {
			without = append(without, name)
		}
	}
	f := fronts{watched: true}
	switch {
	case now.Sub(j.began) < frontsSettle || len(nodes) == 0:
		return f
	case len(without) == 0:
		f.reason = v1alpha1.ReasonBalanced
		return f
	case len(without) == len(nodes):
		f.reason = v1alpha1.ReasonNoEnvoy
	default:
		f.reason = v1alpha1.ReasonNodesWithoutEnvoy
	}
	slices.Sort(without)
	named := strings.Join(without[:min(namedNodes, len(without))], ", ")
	if len(without) > namedNodes {
		named += " and others"
	}
	f.message = fmt.Sprintf("no Envoy is ready on %d of %d nodes (%s)", len(without), len(nodes), named)
	return f
}

// tellFronts has the services whose requests are balanced tell of the Envoys.
func (l *leader) tellFronts(ctx context.Context, f fronts) error {
	l.r.mu.Lock()
	l.r.fronts = f
	l.r.mu.Unlock()
	var all v1alpha1.WangellServiceList
	if err := l.r.client.List(ctx, &all); err != nil {
		return fmt.Errorf("list WangellServices: %w", err)
	}
	for i := range all.Items {
		if s := &all.Items[i]; s.Spec.BalancesRequests() {
			l.changed.add(v1alpha1.KeyOf(s))
		}
	}
	return nil
}
