// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// BalanceConfig configures Balance.
type BalanceConfig struct {
	// Cluster is the file cluster.json of a cluster that test/cluster has started, Wangell's chart installed unless Modes
	// leaves it out.
	Cluster string
	// Quick makes everything short: to see that it works, not to trust the numbers.
	Quick bool
	// Modes are those of BalanceModes that are measured. Default: all.
	Modes []string
	// Time is how long each pattern goes on. Default: 60 s, or 4 s if Quick.
	Time time.Duration
	// Log is told what is done; it may be nil.
	Log func(format string, args ...any)
}

// BalanceModes are the modes that are compared.
var BalanceModes = []string{ModeNftables, ModeWangell}

// balancePods is how many pods there are.
const balancePods = 5

// BalancePattern is a way in which clients use connections.
type BalancePattern struct {
	// Key is its name in summaries, Name what people read.
	Key  string `json:"key"`
	Name string `json:"name"`
	// Clients have nothing in common; each has so many Threads, which make one request after the other.
	Clients int `json:"clients"`
	Threads int `json:"threads"`
	// Each thread keeps a connection of its own (OwnConnection), makes a new one for each request (NewConnection), or takes
	// one from its client's pool and gives it back (neither).
	OwnConnection bool `json:"own_connection,omitempty"`
	NewConnection bool `json:"new_connection,omitempty"`
}

// BalancePatterns are those that are measured.
var BalancePatterns = []BalancePattern{
	{Key: "one_connection", Name: "one connection, reused", Clients: 1, Threads: 1, OwnConnection: true},
	{Key: "five_connections", Name: "5 threads, a connection each", Clients: 1, Threads: 5, OwnConnection: true},
	{Key: "new_connection", Name: "a new connection for each request", Clients: 1, Threads: 1, NewConnection: true},
	{Key: "pool_5", Name: "a pool shared by 5 threads", Clients: 1, Threads: 5},
	{Key: "pool_20", Name: "a pool shared by 20 threads", Clients: 1, Threads: 20},
	{Key: "seven_clients", Name: "7 clients of 3 threads", Clients: 7, Threads: 3},
}

// BalanceSample is what became of a pattern in a mode.
type BalanceSample struct {
	Mode    string  `json:"mode"`
	Pattern string  `json:"pattern"`
	Seconds float64 `json:"seconds"`
	// Requests and Connections are by pod; a pod without any has a zero.
	Requests    map[string]int `json:"requests"`
	Connections map[string]int `json:"connections"`
	Failed      int            `json:"failed"`
	Errors      []string       `json:"errors,omitempty"` // the first few
}

func (c BalanceConfig) withDefaults() (BalanceConfig, error) {
	switch {
	case c.Cluster == "":
		return c, errors.New("lab balance: no cluster: give the cluster.json of one that test/cluster has started")
	case c.Time < 0:
		return c, errors.New("lab balance: the time is below zero")
	case c.Time == 0 && c.Quick:
		c.Time = 4 * time.Second
	case c.Time == 0:
		c.Time = time.Minute
	}
	if len(c.Modes) == 0 {
		c.Modes = BalanceModes
	}
	for _, mode := range c.Modes {
		if !slices.Contains(BalanceModes, mode) {
			return c, fmt.Errorf("lab balance: no mode %q: there are %s", mode, strings.Join(BalanceModes, ", "))
		}
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	return c, nil
}

// Balance measures how evenly the requests of several kinds of clients reach pods, with kube-proxy and with Wangell.
func Balance(ctx context.Context, cfg BalanceConfig) (_ *Report, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	load := loadAverage()
	c, err := openProxyCluster(ctx, cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("lab balance: %w", err)
	}
	defer func() {
		if closeErr := c.close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("lab balance: clean up: %w", closeErr))
		}
	}()
	samples, err := balance(ctx, c, cfg)
	if err != nil {
		return nil, fmt.Errorf("lab balance: %w", err)
	}
	r := balanceReport(cfg, samples)
	if r.Versions, err = c.versions(ctx, nil); err != nil {
		return nil, fmt.Errorf("lab balance: %w", err)
	}
	r.Params = map[string]any{"nodes": len(c.file.Nodes), "CNI": c.file.CNI, "pods": balancePods, "modes": strings.Join(cfg.Modes, ", "), "quick": cfg.Quick,
		"time of each pattern (s)": cfg.Time.Seconds(), "load average at begin": load, "load average at end": loadAverage()}
	return r, nil
}

// balance takes a sample of each pattern in each mode, the modes in turn.
func balance(ctx context.Context, c *proxyCluster, cfg BalanceConfig) ([]BalanceSample, error) {
	targets := map[string]*target{}
	for _, mode := range cfg.Modes {
		t, err := (*target)(nil), error(nil)
		if mode == ModeWangell {
			t, err = c.wangellTarget(ctx, "balance-wangell", stopNow, balancePods)
		} else {
			if err := c.setProxyMode(ctx, mode); err != nil {
				return nil, err
			}
			t, err = c.proxyTarget(ctx, "balance-proxy", stopNow)
		}
		if err != nil {
			return nil, err
		}
		if err := t.scaleTo(ctx, balancePods); err != nil {
			return nil, err
		}
		targets[mode] = t
	}
	from, err := c.podClients(ctx, 1)
	if err != nil {
		return nil, err
	}
	var samples []BalanceSample
	for i, p := range BalancePatterns {
		for _, mode := range inTurn(cfg.Modes, i) {
			t := targets[mode]
			if err := t.serves(ctx, from); err != nil {
				return nil, err
			}
			pods, err := t.pods(ctx)
			if err != nil {
				return nil, err
			}
			names := make([]string, len(pods))
			for i := range pods {
				names[i] = pods[i].Name
			}
			s := runPattern(ctx, p, from.hosts[0].ns.Dialer().DialContext, from.address(t), names, cfg.Time)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			s.Mode = mode
			cfg.Log("%s: %s: %.0f requests per second, busiest over mean %.2f, %d failed", p.Name, mode, s.perSecond(), busiest(s.Requests), s.Failed)
			samples = append(samples, s)
		}
	}
	return samples, nil
}
