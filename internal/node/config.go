// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/kube/enrolment"
)

// Config configures a daemon.
type Config struct {
	// Server is the controller's UDP address, host:port; empty if Follow provides it.
	Server string
	// Follow calls moved with the controller's address, now and whenever it changes, until ctx ends. Optional.
	Follow func(ctx context.Context, moved func(addr string))
	// Keys are the keys of this node, if Enrol does not provide them.
	Keys enrolment.Keys
	// Enrol asks the controllers for the keys of this node until it has them or ctx ends. Optional. The daemon keeps
	// them in RunDir, so that it can restart without a controller, and asks anew when they are refused.
	Enrol func(ctx context.Context) (enrolment.Keys, error)
	// Keepalive is the interval of keepalives, the same as the controller's. The default is wire.DefaultKeepalive.
	Keepalive time.Duration
	// Node is the name of this node.
	Node string
	// NodeAddr is this node's IPv4 address, to which other nodes send packets for its pods; zero if there is only one
	// node.
	NodeAddr netip.Addr
	// EncapPort is the UDP port for these packets, the same on all nodes; 0 if there is only one node.
	EncapPort uint16
	// CRI is the endpoint of the container runtime (internal/node/cri); if empty, the daemon does not observe pods there.
	CRI string
	// PodLogs is the folder below which kubelet keeps the logs of containers, by the same path as on the host; if empty,
	// the ends of the logs of containers that have ended are not reported. It needs CRI.
	PodLogs string
	// Exec runs a command in a container of a pod for readinessProbes; see readiness.Prober. pod is the container
	// runtime's ID of the pod. Optional with CRI, which provides it.
	Exec func(ctx context.Context, pod, container string, command []string) (code int, output []byte, err error)
	// CgroupRoot is where the hierarchies of cgroups are mounted; empty means /sys/fs/cgroup, and in a cluster that no
	// pod is frozen.
	CgroupRoot string
	// RunDir is the daemon's folder. A second daemon with the same folder waits until the first has ended.
	RunDir string
	// BPFDir is a folder for the gate's pins in an existing bpf file system. If empty, the gate mounts one on
	// RunDir/bpf.
	BPFDir string
	// ServiceRanges contain the service addresses.
	ServiceRanges []netip.Prefix
	// Interfaces are the external interfaces. The default is the interfaces with a default route, now and later.
	Interfaces []string
	// XDPMode is auto, native, generic or off. The default is auto.
	XDPMode string
	// Shortcut lets connections of pods on this node bypass its network stack once the stack has accepted their SYN.
	Shortcut bool
	// LazySocket is the socket of this node's wangell-snapshotter. Files that it cannot fetch are reported at a
	// second socket beside it. It needs CRI. If it is empty, nothing is reported.
	LazySocket string
	// Peers configures the sharing of images with other nodes. It needs CRI and NodeAddr.
	Peers PeersConfig
	// EnvoySocket is the unix socket at which the Envoy of this node gets its configuration, and EnvoyUser the user
	// that Envoy runs as. If EnvoySocket is empty, all services balance connections instead of requests.
	EnvoySocket string
	EnvoyUser   int
	// Fronts calls changed with the addresses of the Envoys of all nodes, now and whenever they change, until ctx ends.
	// Optional; for clusters.
	Fronts func(ctx context.Context, changed func(addrs []netip.Addr))
	// NoARP leaves ARP requests for service addresses unanswered, because something else routes packets for them to the
	// nodes.
	NoARP bool
	// RepliesByEdge makes replies to clients of other nodes go back through the client's edge node.
	RepliesByEdge bool
	// WakeBudgets limit the wakes caused by clients that have not proven their source address.
	WakeBudgets gate.WakeBudgets
	// MetricsSocket (a unix socket) and MetricsAddress (host:port) serve /metrics (Prometheus), /healthz and /readyz
	// over HTTP. Each is optional.
	MetricsSocket, MetricsAddress string
	// CrowdWait is how long SYNs are kept for the other pods of a wake after the first one listens. The default is
	// 250 ms.
	CrowdWait time.Duration
	// Sizes are the limits of the gate's tables.
	Sizes gate.Sizes
	Log   *slog.Logger
	// Ready is called when the gate is attached and holds the first table of services. Optional.
	Ready func()
	// Clean reports, after ctx has ended, whether to remove the gate. If it is nil or returns false, the gate keeps
	// running without a daemon.
	Clean func() bool
}

// PeersConfig configures the mirror by which nodes share images (package peer).
type PeersConfig struct {
	// Port is the TCP port on Config.NodeAddr for other nodes; 0: this node shares nothing.
	Port uint16
	// LocalPort is the TCP port on the loopback address at which containerd reaches the mirror.
	LocalPort uint16
	// Dir is a folder for blobs until containerd has them, on a disk with room for the largest image.
	Dir string
	// Hosts is the folder in which containerd reads the settings of registries. The daemon adds the mirror to it.
	Hosts string
	// Caches are the cluster's caches of registries: the URL of each, by the registry in the names of images.
	Caches map[string]string
	// Layers is the folder in which the node's wangell-snapshotter keeps packed layers. Other nodes get parts of them.
	// If it is empty, there is none.
	Layers string
	// Rate bounds what is sent to other nodes, in bytes per second; 0 means no limit.
	Rate int64
}

// local is the address at which containerd reaches the mirror.
func (c PeersConfig) local() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), c.LocalPort)
}
