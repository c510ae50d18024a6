// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/envoytest"
	"wangell.loutres.me/test/testutil/netlab"
)

// machineSite is an instance of Wangell on this machine. Its services run all the time.
type machineSite struct {
	*onenode.Instance

	envoy string // the program
}

// machineTarget is a service of the instance.
type machineTarget struct {
	site machineSite
	name string
}

// openMachine starts an instance with a service for each mode, and for each mode with work.
func openMachine(ctx context.Context, p Params) (_ site, err error) {
	program := p.Wangell
	if program == "" {
		if program, err = onenode.FindWangell(); err != nil {
			return nil, err
		}
	}
	envoy := p.Envoy
	if envoy == "" {
		if envoy, err = envoytest.Find(ctx); err != nil {
			return nil, fmt.Errorf("--envoy: %w", err)
		}
	}
	i, err := onenode.NewInstance(program, netlab.DefaultServices)
	if err != nil {
		return nil, err
	}
	i.Flags = []string{"--envoy", envoy}
	if err = i.LoadImage(ctx, ""); err == nil {
		err = i.Start(ctx, []byte(machineServices(p.Modes)))
	}
	if err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return machineSite{i, envoy}, nil
}

// machineServices is the manifest of the instance.
func machineServices(modes []string) string {
	var all strings.Builder
	for _, mode := range modes {
		for _, work := range []time.Duration{0, work} {
			level := v1alpha1.LevelConnection
			if mode == proxy.ModeRequest {
				level = v1alpha1.LevelRequest
			}
			fmt.Fprintf(&all, `---
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: %s}
spec:
  image: %q
  port: 80
  targetPort: 8080
  minReplicas: %d
  maxReplicas: %d
  env: [{name: WORK, value: %s}]
  balancing: {level: %s}
`, machineService(mode, work), image.HelloTag, replicas, replicas, work, level)
		}
	}
	return all.String()
}

// machineService is the name of a mode's service.
func machineService(mode string, work time.Duration) string {
	name := "balance-" + strings.ReplaceAll(mode, "_", "-")
	if work > 0 {
		name += "-work"
	}
	return name
}

// target implements site.
func (s machineSite) target(_ context.Context, mode string, work time.Duration) (target, error) {
	return machineTarget{s, machineService(mode, work)}, nil
}

// describe implements site.
func (s machineSite) describe(ctx context.Context, _ map[string]any) (map[string]string, error) {
	versions := report.MachineVersions()
	out, err := exec.CommandContext(ctx, s.envoy, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", s.envoy, err)
	}
	_, version, _ := strings.Cut(string(out), "version:")
	versions["envoy"] = strings.TrimSpace(version)
	return versions, nil
}

// endpoint implements target.
func (t machineTarget) endpoint(ctx context.Context) (e endpoint, err error) {
	e = endpoint{dial: t.site.Net.Client().Dialer().DialContext, named: "Served-At"}
	return e, t.site.Until(ctx, func(ctx context.Context) error {
		services, err := t.site.Control.Status(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			if s.Service.Name != t.name {
				continue
			}
			e.address = fmt.Sprintf("%s:%d", s.Service.Status.LoadBalancerIP, s.Service.Spec.Port)
			e.pods = nil
			for _, p := range s.Pods {
				e.pods = append(e.pods, p.Addr.String())
			}
			if s.Serving != replicas || len(s.Pods) != replicas {
				return fmt.Errorf("service %s: %d of %d pods serve, want %d", t.name, s.Serving, len(s.Pods), replicas)
			}
			return nil
		}
		return fmt.Errorf("there is no service %s", t.name)
	})
}

// envoy implements target.
func (t machineTarget) envoy(context.Context) (use EnvoyUse, err error) {
	pid, err := t.site.Child("--config-yaml")
	if err != nil {
		return use, err
	}
	p, err := process.Open(pid)
	if err != nil {
		return use, err
	}
	defer p.Close()
	cpu, err := p.CPU()
	if err != nil {
		return use, err
	}
	use.CPU = cpu.Seconds()
	use.Memory, err = report.Memory(pid, "RssAnon")
	return use, err
}

// remove implements target. Pods without requests disturb nobody.
func (machineTarget) remove(context.Context) error { return nil }
