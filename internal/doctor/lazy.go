// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
)

// lazyPlugin is what containerd calls wangell-snapshotter.
const lazyPlugin = "wangell-lazy"

// lazyPulls checks whether the containerd at a socket can start containers before their image is here.
func lazyPulls(ctx context.Context, address, fuse string) Check {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := Check{Name: "lazy pulling", Group: Images, For: "imagePull: {mode: Lazy} (docs/images.md)"}
	if _, err := os.Stat(fuse); err != nil {
		c.Do = "modprobe fuse"
		return c.warn("no " + fuse)
	}
	client, err := containerd.New(address, containerd.WithTimeout(checkTimeout))
	if err != nil {
		return c.skipped(err.Error())
	}
	defer client.Close()
	found, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+lazyPlugin)
	if err != nil {
		return c.skipped(err.Error())
	}
	if len(found.Plugins) == 0 {
		c.Do = "only for services with that mode: add the plugin to containerd's configuration, as docs/images.md says"
		return c.warn(fmt.Sprintf("containerd at %s has no plugin %s", address, lazyPlugin))
	}
	socket := strings.TrimPrefix(found.Plugins[0].Exports["address"], "unix://")
	if _, err := behind(ctx, socket); err != nil {
		c.Do = "systemctl enable --now wangell-snapshotter"
		return c.warn(fmt.Sprintf("nothing serves the plugin %s at %s: %v", lazyPlugin, socket, err))
	}
	return c.ok("containerd has the plugin, which answers at " + socket)
}
