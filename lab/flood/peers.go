// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/knative"
	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/netlab"
)

// peerName is the name of the service of each peer.
const peerName = "flooded"

// peersRun is the part on a cluster.
type peersRun struct {
	*proxy.Cluster
	params Params
	image  string
	peers  []Peer
	// settings and versions describe the cluster and its peers.
	settings map[string]any
	versions map[string]string
}

// runPeers attacks a warm service of each peer that the cluster has. kube-proxy is last, because conntrack remembers
// its forged connections for minutes.
func runPeers(ctx context.Context, params Params, out lab.Output) (_ *peersRun, err error) {
	c, err := proxy.Open(ctx, params.Cluster, knative.Resource)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	r := &peersRun{Cluster: c, params: params, settings: map[string]any{
		"cluster: nodes": len(c.File.Nodes), "cluster: CNI": c.File.CNI, "cluster: kube-proxy mode": c.File.ProxyMode,
	}}
	if r.versions, err = c.Versions(); err != nil {
		return nil, err
	}
	if r.image, err = c.PushHello(ctx); err != nil {
		return nil, err
	}
	for _, peer := range []struct {
		name  string
		serve func(context.Context) (address, host string, err error)
	}{{PeerWangell, r.serveWangell}, {PeerKnative, r.serveKnative}, {PeerKubeProxy, r.serveKubeProxy}} {
		address, host, err := peer.serve(ctx)
		if errors.Is(err, knative.ErrMissing) {
			out.Log("%s: left out: %v", peer.name, err)
			continue
		}
		if err == nil {
			err = r.attack(ctx, peer.name, address, host)
		}
		if err != nil {
			return nil, fmt.Errorf("flood of %s: %w", peer.name, err)
		}
		out.Log("flood of %s: done", peer.name)
	}
	return r, nil
}

// server is the server of every peer. It stops at once, for it has nothing to finish.
func (r *peersRun) server() cluster.Server {
	return cluster.Server{Image: r.image, Stop: cluster.StopNow}
}

func (r *peersRun) serveWangell(ctx context.Context) (address, host string, err error) {
	t, err := r.WangellTarget(ctx, peerName+"-wangell", r.server(), 1)
	if err != nil {
		return "", "", err
	}
	at, err := netip.ParseAddrPort(t.Outside)
	if err != nil {
		return "", "", err
	}
	// By the same node as to kube-proxy.
	return t.Outside, t.Outside, errors.Join(r.RouteClient(at.Addr()), t.ScaleTo(ctx, 1))
}

func (r *peersRun) serveKubeProxy(ctx context.Context) (address, host string, err error) {
	t, err := r.Target(ctx, peerName+"-proxy", r.server())
	if err != nil {
		return "", "", err
	}
	return t.Outside, t.Outside, nil
}

// serveKnative keeps one pod, and the activator in the path.
func (r *peersRun) serveKnative(ctx context.Context) (address, host string, err error) {
	s := knative.Service{Cluster: r.Cluster.Cluster, Name: peerName + "-knative", Image: r.image,
		Annotations: map[string]string{knative.MinScale: "1", knative.BurstCapacity: "-1"}}
	if err := s.Create(ctx); err != nil {
		return "", "", err
	}
	settings, versions, err := knative.Settings(ctx, r.Cluster.Cluster)
	if err != nil {
		return "", "", err
	}
	for k, v := range s.Annotations {
		settings["knative: "+k] = v
	}
	maps.Copy(r.settings, settings)
	maps.Copy(r.versions, versions)
	return s.Address, s.Host, nil
}

// attack takes the samples of a peer whose service has an address.
func (r *peersRun) attack(ctx context.Context, name, address, host string) error {
	service, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	err = cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		_, err := r.Request(ctx, address, host)
		return err
	})
	if err != nil {
		return fmt.Errorf("the service at %s: %w", address, err)
	}
	attacker, at, err := r.attacker(service)
	if err != nil {
		return err
	}
	p := Peer{Name: name}
	calm, cancel := context.WithTimeout(ctx, r.params.Time/2)
	p.Calm = r.use(calm, address, host)
	cancel()
	err = attacker.during(ctx, at, r.params, &p.Flood, func(ctx context.Context) {
		p.Flood.Near = r.use(ctx, address, host)
	})
	r.peers = append(r.peers, p)
	return err
}

// use has four clients use a service until ctx ends.
func (r *peersRun) use(ctx context.Context, address, host string) Requests {
	var near requests
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { near.repeatFor(ctx, r.Client, address, host) })
	}
	group.Wait()
	return near.r
}

// attacker prepares the attack on a service, whose packets enter by the node that has its address, or else by the first
// one. It claims to be the client's router.
func (r *peersRun) attacker(service netip.AddrPort) (*attacker, target, error) {
	node := r.File.Nodes[0]
	if i := slices.IndexFunc(r.File.Nodes, func(n clusterfile.Node) bool {
		return n.IP == service.Addr().String()
	}); i >= 0 {
		node = r.File.Nodes[i]
	}
	none := target{}
	ns, err := netlab.Existing(node.NetnsPath)
	if err != nil {
		return nil, none, err
	}
	lan, err := netlab.Existing(r.File.LAN.NetnsPath)
	if err != nil {
		return nil, none, err
	}
	a := &attacker{link: lan, port: node.LANPort}
	if a.from, err = hardwareAddr(r.Client, r.File.Client.Interface); err != nil {
		return nil, none, err
	}
	if a.to, err = hardwareAddr(ns, node.Interface); err != nil {
		return nil, none, err
	}
	return a, target{[]netip.AddrPort{service}, ns, node.Interface}, nil
}
