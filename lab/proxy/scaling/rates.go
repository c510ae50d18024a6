// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
	"wangell.loutres.me/lab/proxy"
)

// rateGroups returns the modes that take turns: each mode of kube-proxy, which takes seconds to enter, with all modes
// that do not depend on it.
func rateGroups(modes []string) (groups [][]string) {
	beside := []string{proxy.ModeDirect}
	if slices.Contains(modes, proxy.ModeWangell) {
		beside = []string{proxy.ModeWangell, proxy.ModeDirect}
	}
	for _, mode := range modes {
		if mode != proxy.ModeWangell {
			groups = append(groups, append([]string{mode}, beside...))
		}
	}
	if groups == nil {
		groups = [][]string{beside}
	}
	return groups
}

// rates measures short connections per second, and requests per second on persistent connections, from both places of
// clients. The limit is to connect to the pods themselves, each client to another one.
func (s *sampler) rates(ctx context.Context) error {
	if err := s.scaleAll(ctx, fixedReplicas); err != nil {
		return err
	}
	repetitions, turns, length := s.params.rateSize()
	for i := range repetitions {
		results := map[rateKey][]load.Result{}
		for _, group := range rateGroups(s.nextTurn()) {
			for turn := range turns * len(group) {
				mode := group[(turn+turn/len(group))%len(group)] // each round of turns begins with another mode
				for _, from := range []*cluster.Vantage{s.pods, s.lan} {
					if err := s.rate(ctx, mode, from, length, results); err != nil {
						return err
					}
				}
			}
		}
		s.addRates(i, results)
	}
	return nil
}

// addRates makes the samples of a repetition.
func (s *sampler) addRates(repetition int, results map[rateKey][]load.Result) {
	for _, mode := range withDirect(s.params.Modes) {
		for _, clients := range rateClients {
			for _, keep := range []bool{false, true} {
				key := rateKey{mode, clients, keep}
				r := load.InSequence(results[key])
				s.out.Log("rates, %d: %s from %s, persistent %v: %.0f per second, %d failed", repetition+1, mode, clients,
					keep, r.PerSecond, r.Failed)
				s.samples.Rates = append(s.samples.Rates, RateSample{key, repetition, r})
			}
		}
	}
}

// rate adds one turn of both kinds of load to results.
func (s *sampler) rate(
	ctx context.Context, mode string, from *cluster.Vantage, length time.Duration, results map[rateKey][]load.Result,
) error {
	t, err := s.enter(ctx, mode, from)
	if err != nil {
		return err
	}
	addresses, err := addressesOf(ctx, t, mode, from)
	if err != nil {
		return err
	}
	for _, keep := range []bool{false, true} {
		generate, connections := load.AbFor, concurrency/len(from.Hosts)
		if keep {
			generate = load.WrkFor
		}
		r, err := load.Together(len(from.Hosts), func(i int) (load.Result, error) {
			return generate(ctx, from.Hosts[i], addresses[i], length, connections)
		})
		if err != nil {
			return err
		}
		key := rateKey{mode, from.Name, keep}
		results[key] = append(results[key], r)
	}
	return nil
}

// addressesOf returns where each client connects to: the target's address, or in proxy.ModeDirect one of its pods.
func addressesOf(ctx context.Context, t *cluster.Target, mode string, from *cluster.Vantage) ([]string, error) {
	addresses := make([]string, len(from.Hosts))
	for i := range addresses {
		addresses[i] = from.Address(t)
	}
	if mode != proxy.ModeDirect {
		return addresses, nil
	}
	pods, err := t.Pods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range addresses {
		pod := pods[i%len(pods)]
		ip, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			return nil, fmt.Errorf("address of pod %s: %w", pod.Name, err)
		}
		addresses[i] = netip.AddrPortFrom(ip, cluster.HelloPort).String()
	}
	return addresses, nil
}
