// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/test/testutil/netlab"
)

// serviceName is the name of the service in the instance.
const serviceName = "default/model"

const manifest = `apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: model, namespace: default}
spec:
  image: %s
  port: 80
  targetPort: %d
  idleTimeout: 3600
  wakeTimeout: %d
  imagePull: {%s}
`

// imagePulls are the imagePull settings of the services, by kind of first wake.
var imagePulls = map[string]string{
	Stock: "when: Wake", Prefetch: "when: Create", Lazy: "when: Wake, mode: Lazy",
}

// wakes measures first wakes, each with an instance of its own that has no image, or a cluster of its own.
func (b *bench) wakes(ctx context.Context) error {
	for round := range b.p.Rounds {
		kinds := []string{Stock, Prefetch, Lazy, NoPeers, Peers}
		if round%2 == 1 {
			slices.Reverse(kinds)
		}
		for _, kind := range kinds {
			if err := b.settle(); err != nil {
				return err
			}
			wake := b.wake
			if kind == NoPeers || kind == Peers {
				wake = b.wakeInCluster
			}
			if err := wake(ctx, round+1, kind); err != nil {
				return fmt.Errorf("wake with %s: %w", kind, err)
			}
		}
	}
	return nil
}

// wake makes an instance and measures the first wake of its service, and one with the image present.
func (b *bench) wake(ctx context.Context, round int, kind string) (err error) {
	instance, err := onenode.NewInstanceOn(b.p.Wangell, netlab.Config{Clients: hosts})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := instance.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", closeErr))
		}
	}()
	h, err := b.startHub(ctx, instance.Net, b.p.bits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	ref := h.ref(original)
	if kind == Lazy {
		ref = h.ref(lazyTags[Lazy])
	}
	instance.Flags = []string{"--insecure-registry", h.Host}
	begin := time.Now()
	if err := instance.Start(ctx, fmt.Appendf(nil, manifest, ref, port, int(wakeTimeout.Seconds()),
		imagePulls[kind])); err != nil {
		return err
	}
	programs, err := instance.Control.Versions(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if name == "containerd" {
			b.versions["containerd of wangell up"] = programs[name]
		} else {
			b.versions[name] = programs[name]
		}
	}
	first := Wake{Round: round, Kind: kind}
	if kind == Prefetch {
		if err := instance.AwaitImage(ctx, ref, wakeTimeout); err != nil {
			return err
		}
		first.Prefetched = time.Since(begin).Seconds()
	}
	if err := b.request(ctx, instance, first); err != nil {
		return err
	}
	if kind == Lazy { // the rest of its image may still be on its way
		if _, err := os.Stat(containerd.LazyRoot(instance.StateDir())); err != nil {
			return fmt.Errorf("the image was pulled in full: put wangell-snapshotter beside %s: %w", b.p.Wangell, err)
		}
		return nil
	}
	if err := instance.Sleep(ctx, serviceName); err != nil {
		return err
	}
	return b.request(ctx, instance, Wake{Round: round, Kind: Warm})
}

// request sends a request to the sleeping service and adds the result to the samples.
func (b *bench) request(ctx context.Context, instance *onenode.Instance, w Wake) error {
	address, err := instance.Address(ctx)
	if err != nil {
		return err
	}
	dial := instance.Net.Clients[requester].Dialer().DialContext
	t, err := probe.RequestWithin(ctx, wakeTimeout, dial, address.String(), address.String())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.FirstByte = t.FirstByte.Seconds()
	if err != nil {
		w.Error = err.Error()
	}
	b.raw.Wakes = append(b.raw.Wakes, w)
	b.out.Log("wake %-9s %7.3f s %s", w.Kind, w.FirstByte, w.Error)
	return instance.Until(ctx, func(ctx context.Context) error { return instance.Woken(ctx, serviceName) })
}
