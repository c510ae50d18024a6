// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// lazyPulls checks whether the containerd at a socket can pull lazily and, if it has the plugin for it, whether the
// pods of its kubelet can.
func lazyPulls(ctx context.Context, address, fuse string) []Check {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := Check{Name: "lazy pulling", Group: Images, For: "imagePull: {mode: Lazy} (docs/images/lazy.md)"}
	client, err := containerd.New(address, containerd.WithTimeout(checkTimeout))
	if err != nil {
		return []Check{c.skipped(err.Error())}
	}
	defer client.Close()
	found, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+
		v1alpha1.LazyRuntime)
	if err != nil {
		return []Check{c.skipped(err.Error())}
	}
	var exports map[string]string
	if len(found.Plugins) > 0 {
		exports = found.Plugins[0].Exports
	}
	checks := []Check{c.judgeLazy(ctx, address, fuse, exports)}
	if exports != nil {
		checks = append(checks, lazyPods(ctx, client, exports)...)
	}
	return checks
}

// judgeLazy checks containerd's configuration of the snapshotter; nil if it has no such plugin.
func (c Check) judgeLazy(ctx context.Context, address, fuse string, exports map[string]string) Check {
	if _, err := os.Stat(fuse); err != nil {
		c.Do = "modprobe fuse"
		return c.warn("no " + fuse)
	}
	if exports == nil {
		c.Do = "only for services with that mode: add the plugin to containerd's configuration, as docs/images/lazy.md says"
		return c.warn(fmt.Sprintf("containerd at %s has no plugin %s", address, v1alpha1.LazyRuntime))
	}
	socket := strings.TrimPrefix(exports["address"], "unix://")
	if _, err := behind(ctx, socket); err != nil {
		c.Do = "systemctl enable --now wangell-snapshotter"
		return c.warn(fmt.Sprintf("nothing serves the plugin %s at %s: %v", v1alpha1.LazyRuntime, socket, err))
	}
	return c.ok("containerd has the plugin, which answers at " + socket)
}

// lazyPods checks whether pods of this node of Kubernetes can be pulled lazily; it returns nothing if the containerd
// serves no kubelet. exports are the exports of its plugin.
func lazyPods(ctx context.Context, client *containerd.Client, exports map[string]string) []Check {
	conn, ok := client.Conn().(grpc.ClientConnInterface)
	if !ok {
		return nil
	}
	st, err := criv1.NewRuntimeServiceClient(conn).Status(ctx, &criv1.StatusRequest{})
	if err != nil {
		return nil
	}
	c := Check{Name: "lazy pulling of pods", Group: Images,
		For: "imagePull: {mode: Lazy} on Kubernetes (docs/images/lazy-kubernetes.md)"}
	handlers := make([]string, 0, len(st.GetRuntimeHandlers()))
	for _, h := range st.GetRuntimeHandlers() {
		handlers = append(handlers, h.GetName())
	}
	return []Check{c.judgeLazyPods(handlers, exports)}
}

// judgeLazyPods checks the handlers of containerd's CRI plugin and its configuration of the snapshotter.
func (c Check) judgeLazyPods(handlers []string, exports map[string]string) Check {
	const where = "only for services with that mode: add %s to containerd's configuration, as " +
		"docs/images/lazy-kubernetes.md says, and restart containerd"
	switch {
	case !slices.Contains(handlers, v1alpha1.LazyRuntime):
		c.Do = fmt.Sprintf(where, "the runtime "+v1alpha1.LazyRuntime)
		return c.warn("containerd has no runtime " + v1alpha1.LazyRuntime)
	case exports["enable_remote_snapshot_annotations"] != "true":
		c.Do = fmt.Sprintf(where, "the exports of the plugin "+v1alpha1.LazyRuntime)
		return c.warn("containerd does not pass the image's name to the snapshotter, so that the image is pulled in full")
	}
	return c.ok("containerd has the runtime " + v1alpha1.LazyRuntime)
}
