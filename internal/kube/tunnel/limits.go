// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"wangell.loutres.me/internal/base/quota"
)

// Limits of the load that strangers can cause. All people come through the few addresses of API servers and of the
// other controllers, so an address may have half, and the API server names the client behind it.
const (
	// maxConnections bounds connections that are not a tunnel yet, maxTunnels the tunnels.
	maxConnections = 256
	maxTunnels     = 256
	maxOfPeer      = (maxConnections + maxTunnels) / 2
	// maxPeerTunnels bounds the tunnels of an address that connects, and maxClientTunnels those of a client that it names.
	// People behind one address, such as that of a load balancer before the API server, are one client.
	maxPeerTunnels   = maxTunnels / 2
	maxClientTunnels = maxTunnels / 4
)

// forwardedFor is the header in which the API server names its client, as the last one.
const forwardedFor = "X-Forwarded-For"

// limits are those of a server.
type limits struct {
	connections   *quota.Slots[netip.Addr]
	peers, client *quota.Slots[netip.Addr]
}

func newLimits() limits {
	return limits{
		connections: quota.NewSlots[netip.Addr](maxOfPeer, maxConnections+maxTunnels),
		peers:       quota.NewSlots[netip.Addr](maxPeerTunnels, maxTunnels),
		client:      quota.NewSlots[netip.Addr](maxClientTunnels, maxTunnels),
	}
}

// take reports whether there may be another tunnel of a client. give ends it.
func (l *limits) take(o origin) bool {
	if !l.peers.Take(o.peer) {
		return false
	}
	if !l.client.Take(o.client) {
		l.peers.Give(o.peer)
		return false
	}
	return true
}

func (l *limits) give(o origin) {
	l.peers.Give(o.peer)
	l.client.Give(o.client)
}

// origin is where a tunnel comes from: the address that has connected, which is the API server's or another
// controller's for people, and the client that it names. Nothing proves that name. It is the remote address of a
// tunnel.
type origin struct{ client, peer netip.Addr }

// originOf returns the origin of a request.
func originOf(r *http.Request) origin {
	o := origin{peer: quota.Address(r.RemoteAddr)}
	o.client = o.peer
	if all := r.Header.Values(forwardedFor); len(all) > 0 {
		last := all[len(all)-1]
		last = strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])
		if a, err := netip.ParseAddr(last); err == nil {
			o.client = a.Unmap().WithZone("")
		}
	}
	return o
}

// Network implements net.Addr.
func (origin) Network() string { return "tunnel" }

// String implements net.Addr: "CLIENT by PEER".
func (o origin) String() string { return o.client.String() + by + o.peer.String() }

const by = " by "

// Origin returns the client that a tunnel's remote address names, without proof, and the address that has connected.
// Both are that of remote if it is HOST:PORT.
func Origin(remote string) (client, peer netip.Addr) {
	if c, p, ok := strings.Cut(remote, by); ok {
		client, _ = netip.ParseAddr(c)
		peer, _ = netip.ParseAddr(p)
		return client, peer
	}
	a := quota.Address(remote)
	return a, a
}

var _ net.Addr = origin{}
