// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/test/testutil/netlab"
)

// Start starts a cluster, and returns once each node is connected. It needs root.
func Start(ctx context.Context, cfg Config) (_ *Cluster, err error) {
	c := &Cluster{cfg: cfg, dir: filepath.Join(cfg.Dir, "s"), pods: newPods()} // short, because of the sockets in it
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a folder for nodes: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if _, err := rand.Read(c.key[:]); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.keyFile(), c.key[:], 0o600); err != nil {
		return nil, err
	}
	if err := c.lead(ctx); err != nil {
		return nil, err
	}
	c.Nodes = make([]*Node, len(cfg.Nodes))
	errs := make([]error, len(cfg.Nodes))
	var starting sync.WaitGroup
	for i := range cfg.Nodes {
		starting.Go(func() { c.Nodes[i], errs[i] = c.startNode(ctx, i) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// startNode starts a node and returns once it is connected.
func (c *Cluster) startNode(ctx context.Context, i int) (_ *Node, err error) {
	host := c.cfg.Nodes[i]
	n := &Node{Name: fmt.Sprintf("node-%d", i+1), host: host}
	n.dir = filepath.Join(c.dir, fmt.Sprint(i+1))
	n.http.Transport = &http.Transport{DialContext: host.Dialer().DialContext}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", n.Name, err), n.close())
		}
	}()
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return nil, err
	}
	if n.containerd, err = live.Start(ctx, live.Options{
		Program: c.cfg.Containerd, Dir: n.dir, Insecure: []string{c.cfg.Registry}, Path: c.cfg.Path, Namespace: host.Path,
	}); err != nil {
		return nil, err
	}
	if n.images, err = cri.OpenImages("unix://" + n.containerd.Socket()); err != nil {
		return nil, err
	}
	if c.cfg.Peers {
		if err := n.askMirror(c.cfg.Registry); err != nil {
			return nil, err
		}
	}
	if err := n.startDaemon(c); err != nil {
		return nil, err
	}
	return n, n.await(ctx)
}

func (n *Node) startDaemon(c *Cluster) error {
	log, err := os.Create(n.log())
	if err != nil {
		return err
	}
	defer log.Close()
	argv := []string{
		c.cfg.Wangell, "daemon", "--server", c.address().String(), "--key-file", c.keyFile(), "--node", n.Name,
		"--node-address", n.host.Addr.String(), "--run-dir", filepath.Join(n.dir, "run"), "--clean",
		"--service-addresses", netlab.DefaultServices.String(), "--interface", netlab.Device, "--xdp-mode", "off",
		"--cri", "unix://" + n.containerd.Socket(), "--metrics-address", n.metricsAddress(),
	}
	if c.cfg.Peers {
		argv = append(argv, "--peers", "--peers-dir", filepath.Join(n.dir, "peers"),
			"--peers-hosts-dir", n.containerd.Hosts())
	}
	cmd := n.host.Command(context.Background(), argv...) // close ends it
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program
	if n.daemon, err = process.StartBound(cmd); err != nil {
		return fmt.Errorf("start its daemon: %w", err)
	}
	return nil
}
