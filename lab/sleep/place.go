// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/netlab"
)

// place is an instance with the services of one part of the experiment.
type place struct {
	*onenode.Instance
	cgroups   *freezer.Freezer
	addresses map[string]string // by service
	prepared  int               // the number of services that want a prepared pod
}

// serviceRange is the range of service addresses.
var serviceRange = netip.MustParsePrefix("10.46.64.0/18")

// patience is how long a service may take to reach a state. A machine at work freezes and stops pods late.
const patience = 5 * time.Minute

// hello is the manifest of a hello service.
func hello(name, sleep string) string { return manifest(name, app{port: 8080}, image.HelloTag, sleep) }

func manifest(name string, a app, tag, sleep string) string {
	return fmt.Sprintf("---\napiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: %s}\nspec:\n"+
		"  image: %q\n  port: %d\n  targetPort: %d\n  idleTimeout: 86400\n  wakeTimeout: 300\n%s%s",
		name, tag, a.port, a.port, a.spec, sleep)
}

// freezing is the part of a manifest by which pods are frozen after a second.
func freezing(reclaim bool) string {
	return fmt.Sprintf("  sleep: {freezeAfter: 1s, reclaim: %t, freezeWhenBusy: true}\n", reclaim)
}

// newPlace starts an instance with a zram of its own.
func newPlace(ctx context.Context, wangell, zram string, recipes []*debimage.Recipe, manifests []string) (
	_ *place, err error,
) {
	p := &place{cgroups: freezer.New(""), addresses: map[string]string{}}
	if p.Instance, err = onenode.NewInstanceOn(wangell, netlab.Config{Services: serviceRange}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if zram != "" {
		p.Flags = []string{"--zram", zram}
	}
	if err := p.LoadImage(ctx, ""); err != nil {
		return nil, err
	}
	for _, r := range recipes {
		built, err := debimage.Build(ctx, *r)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(p.StateDir(), "image.tar")
		err = image.WriteFile(file, r.Tag(), built.Image)
		if err == nil {
			err = errors.Join(p.LoadImage(ctx, file), os.Remove(file))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.Start(ctx, []byte(strings.Join(manifests, ""))); err != nil {
		return nil, err
	}
	services, err := p.Control.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		p.addresses[s.Service.Name] = fmt.Sprintf("%s:%d", s.Service.Status.LoadBalancerIP, s.Service.Spec.Port)
	}
	return p, nil
}

// until waits until all services with some names are in a state.
func (p *place) until(ctx context.Context, names []string, what string, ok func(status.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := 100*time.Millisecond + 20*time.Millisecond*time.Duration(len(names)/50) // an answer costs processor time
	for {
		services, err := p.Control.Status(ctx)
		if err != nil {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
		left := map[string]string{}
		for _, name := range names {
			left[name] = "gone"
		}
		for _, s := range services {
			if _, wanted := left[s.Service.Name]; !wanted {
				continue
			}
			if left[s.Service.Name] = string(s.Service.Status.State); ok(s) {
				delete(left, s.Service.Name)
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			for name, state := range left {
				return fmt.Errorf("waiting until %s: %d services are not, such as %s, which is %s: %w",
					what, len(left), name, state, ctx.Err())
			}
		}
	}
}

// frozen waits until all pods of services are frozen.
func (p *place) frozen(ctx context.Context, names ...string) error {
	return p.until(ctx, names, "frozen", func(s status.Status) bool {
		return len(s.Pods) == 1 && s.Pods[0].Frozen != nil
	})
}

// pod returns the ID of the only pod of a service; empty if there is none.
func (p *place) pod(ctx context.Context, name string) (string, error) {
	services, err := p.Control.Status(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range services {
		if s.Service.Name == name && len(s.Pods) == 1 {
			return s.Pods[0].ID, nil
		}
	}
	return "", nil
}

const mb = 1e6

// memory returns what a pod has in RAM and in swap, in MB.
func (p *place) memory(id string) (resident, swapped float64, err error) {
	m, err := p.cgroups.Memory(p.PodCgroup(id))
	return float64(m.Resident) / mb, float64(m.Swapped) / mb, err
}

// settled waits until the memory of a pod does not shrink any more, because it was given back.
func (p *place) settled(ctx context.Context, id string) error {
	_, err := settledMemory(ctx, id, func() (float64, error) {
		resident, _, err := p.memory(id)
		return resident, err
	})
	return err
}

// settledMemory waits until the memory of a pod, as measure returns it, does not change any more, and returns it.
func settledMemory(ctx context.Context, pod string, measure func() (float64, error)) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last, same := -1.0, 0
	for same < 10 {
		now, err := measure()
		if err != nil {
			return 0, err
		}
		if same++; now != last {
			last, same = now, 0
		}
		if err := lab.Sleep(ctx, 30*time.Millisecond); err != nil {
			return 0, fmt.Errorf("the memory of pod %s still changes: %w", pod, err)
		}
	}
	return last, nil
}

// quiet is the pause before each request.
const quiet = 200 * time.Millisecond
