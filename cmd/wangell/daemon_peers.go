// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/node"
)

// addPeers adds the flags of the mirror by which nodes share images.
func addPeers(flags *pflag.FlagSet, on *bool, c *node.PeersConfig) {
	flags.BoolVar(on, "peers", false, "cluster: share the images of services with other nodes; containerd\n"+
		"asks this daemon before the registry")
	flags.Uint16Var(&c.Port, "peers-port", 7948, "TCP port on --node-address for other nodes")
	flags.Uint16Var(&c.LocalPort, "peers-local-port", 7949, "TCP port on the loopback address for containerd")
	flags.StringVar(&c.Dir, "peers-dir", "/var/lib/wangell", "folder for blobs until containerd has them")
	flags.StringVar(&c.Hosts, "peers-hosts-dir", "/etc/containerd/certs.d",
		"folder of containerd's settings of registries (config_path), where the daemon makes _default/hosts.toml")
	flags.StringToStringVar(&c.Caches, "peers-cache", nil,
		"caches of registries in the cluster, as REGISTRY=URL: docker.io=http://cache.example:5000")
	flags.StringVar(&c.Layers, "peers-layers", "",
		"folder with the layers of this node's wangell-snapshotter (blobs in its --root), of which other nodes get parts")
	flags.Int64Var(&c.Rate, "peers-rate", 0, "bytes per second that are sent to other nodes; 0 is without limit")
}
