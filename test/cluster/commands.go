// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"wangell.loutres.me/test/testutil/clusterfile"
)

// nodeArgument opens the state for a command with one node as its argument.
func nodeArgument(o *options, args []string) (*state, plan, func(), error) {
	if len(args) != 1 {
		return nil, plan{}, nil, errors.New("give one node's name, such as node-1")
	}
	s, unlock, err := openState(o)
	if err != nil {
		return nil, plan{}, nil, err
	}
	p, err := s.plan()
	if err != nil {
		unlock()
		return nil, plan{}, nil, err
	}
	return s, p, unlock, nil
}

func runNodeKill(_ context.Context, o *options, args []string) error {
	s, p, unlock, err := nodeArgument(o, args)
	if err != nil {
		return fmt.Errorf("node-kill: %w", err)
	}
	defer unlock()
	if err := killNode(p, s, args[0]); err != nil {
		return fmt.Errorf("node-kill: %w", err)
	}
	return nil
}

func runNodeStart(ctx context.Context, o *options, args []string) error {
	s, p, unlock, err := nodeArgument(o, args)
	if err != nil {
		return fmt.Errorf("node-start: %w", err)
	}
	defer unlock()
	info, err := s.node(args[0])
	if err != nil {
		return fmt.Errorf("node-start: %w", err)
	}
	if info.Up {
		return fmt.Errorf("node-start: %s runs already", args[0])
	}
	// A rebooted machine has no old routes, rules or programs.
	if err := leaveLAN(p, args[0]); err != nil {
		return fmt.Errorf("node-start: %w", err)
	}
	if err := startNode(ctx, p, s, args[0], filepath.Join(s.Dir, "cluster")); err != nil {
		return fmt.Errorf("node-start: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return waitNode(ctx, s, args[0])
}

func runRestartProxy(ctx context.Context, o *options, _ []string) error {
	if err := checkProxyMode(o.proxyMode); err != nil {
		return err
	}
	s, unlock, err := openState(o)
	if err != nil {
		return err
	}
	defer unlock()
	s.ProxyMode = o.proxyMode
	p, err := s.plan()
	if err != nil {
		return err
	}
	for i, n := range p.Nodes {
		info := &s.Nodes[i]
		if !info.Up {
			continue // it will start in the new mode
		}
		if err := restartProxy(ctx, p, n, info, s.Bin); err != nil {
			return fmt.Errorf("restart-proxy: %s: %w", n.Name, err)
		}
	}
	if err := s.save(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for i, n := range p.Nodes {
		if s.Nodes[i].Up {
			if err := waitDNS(ctx, p, n.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func restartProxy(ctx context.Context, p plan, n nodePlan, info *clusterfile.Node, bin string) error {
	if err := stopService(ctx, info.Dir, proxyService, 5*time.Second); err != nil {
		return err
	}
	if err := runOnce(ctx, info.Dir, proxyCleanup(p, n, bin)); err != nil {
		return err
	}
	proxy, err := findService(nodeServices(p, n, bin), proxyService)
	if err != nil {
		return err
	}
	return startService(ctx, info.Dir, proxy)
}

func runStopAPIServer(ctx context.Context, o *options, _ []string) error {
	s, unlock, err := openState(o)
	if err != nil {
		return err
	}
	defer unlock()
	return stopService(ctx, filepath.Join(s.Dir, controlMachine), apiServerService, 0)
}

func runStartAPIServer(ctx context.Context, o *options, _ []string) error {
	s, unlock, err := openState(o)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := s.plan()
	if err != nil {
		return err
	}
	server, err := s.apiServerHere()
	if err != nil {
		return err
	}
	svc, err := findService(controlServices(p, s.Bin), apiServerService)
	if err != nil {
		return err
	}
	if err := startService(ctx, p.machineDir(controlMachine), svc); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return waitAPIServer(ctx, p, server)
}

func runPush(ctx context.Context, o *options, args []string) error {
	if len(args) != 2 {
		return errors.New("push: give an image as `docker save` writes it, and a reference, such as app.tar " +
			"registry.cluster.local:5000/app:1")
	}
	s, err := loadState(o.folder())
	if err != nil {
		return err
	}
	if _, err := os.Stat(args[0]); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	img, err := tarball.ImageFromPath(args[0], nil)
	if err != nil {
		return fmt.Errorf("push: %s: %w", args[0], err)
	}
	return push(ctx, img, s.Registry.PushAddress, args[1])
}
