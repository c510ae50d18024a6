// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/test/testutil/distribution"
)

// withCaches has the caches of two registries.
var withCaches = []string{
	"--set", "daemon.peers.enabled=true,cache.enabled=true",
	"--set", "cache.registries[0].name=docker.io,cache.registries[0].url=https://registry-1.docker.io",
	"--set", "cache.registries[1].name=registry.example:5000,cache.registries[1].url=http://registry.example:5000",
	"--set", "cache.registries[1].secret=login",
}

func TestACacheIsOffByDefault(t *testing.T) {
	r := render(t, "--set", "daemon.peers.enabled=true")
	args := strings.Join(r.daemon.Spec.Template.Spec.Containers[0].Args, " ")
	policy := r.daemon.Spec.Template.Spec.DNSPolicy
	if len(r.caches)+len(r.services)+len(r.claims) > 0 || strings.Contains(args, "cache") || policy != corev1.DNSDefault {
		t.Errorf("%v, %s, %s", r.kinds, args, policy)
	}
}

// Each registry has a cache, which the daemons are told by its name, and can resolve.
func TestEachRegistryHasACache(t *testing.T) {
	r := render(t, append(slices.Clone(withCaches), "--set", "networkPolicy.enabled=true",
		"--set", "networkPolicy.nodeCIDRs={192.0.2.0/24}")...)
	if len(r.caches) != 2 || len(r.services) != 2 || len(r.claims) != 2 || len(r.policies) != 3 {
		t.Fatalf("%v", r.kinds)
	}
	spec := r.daemon.Spec.Template.Spec
	if spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
		t.Errorf("daemons resolve by %s", spec.DNSPolicy)
	}
	for i, registry := range []string{"docker.io", "registry.example:5000"} {
		service, pods := r.services[i], r.caches[i].Spec.Template
		flag := "--peers-cache=" + registry + "=http://" + service.Name + "." + namespace + ".svc:5000"
		if !slices.Contains(spec.Containers[0].Args, flag) {
			t.Errorf("%s is not among %v", flag, spec.Containers[0].Args)
		}
		for j := range r.services {
			matches := true
			for k, v := range r.services[j].Spec.Selector {
				matches = matches && pods.Labels[k] == v
			}
			if matches != (i == j) {
				t.Errorf("the Service %s selects the pods of %s: %v", r.services[j].Name, registry, matches)
			}
		}
		if env := pods.Spec.Containers[0].Env; (len(env) == 3) != (registry != "docker.io") {
			t.Errorf("%s: %v", registry, env)
		}
	}
	peers := r.policies[1].Spec.Ingress[0].From
	if len(peers) != 1 || peers[0].IPBlock == nil || peers[0].IPBlock.CIDR != "192.0.2.0/24" {
		t.Errorf("a cache can be reached from %v", peers)
	}
}

func TestACacheHasNoRights(t *testing.T) {
	spec := render(t, withCaches...).caches[0].Spec.Template.Spec
	c := spec.Containers[0].SecurityContext
	if *spec.AutomountServiceAccountToken || !*spec.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation ||
		!*c.ReadOnlyRootFilesystem || len(c.Capabilities.Add) > 0 || spec.HostNetwork {
		t.Errorf("%+v %+v", spec.SecurityContext, c)
	}
}

func TestACacheNeedsPeers(t *testing.T) {
	_, errs, err := helm(t, "--set", "cache.enabled=true")
	if err == nil || !strings.Contains(errs, "daemon.peers.enabled") {
		t.Errorf("%v: %s", err, errs)
	}
	for args, want := range map[string]string{
		"cache.registries={}":                                        "/cache/registries",
		"cache.registries[0].name=docker.io":                         "/cache/registries/0",
		"cache.registries[0].name=a,cache.registries[0].url=b":       "/cache/registries/0/url",
		"cache.ttl=week":                                             "/cache/ttl",
		"cache.image.tag=latest":                                     "/cache/image/tag",
		"cache.storage.size=much":                                    "/cache/storage/size",
		"cache.registries[0].name=A b,cache.registries[0].url=http:": "/cache/registries/0",
	} {
		if _, errs, err := helm(t, "--set", args); err == nil || !strings.Contains(errs, want) {
			t.Errorf("%s: want it refused for %s, got %v: %s", args, want, err, errs)
		}
	}
}

// The registry that is built from the Go module understands the chart's configuration.
func TestTheRegistryReadsTheConfigurationOfACache(t *testing.T) {
	r := render(t, withCaches...)
	if len(r.settings) != len(r.caches) {
		t.Errorf("%d configurations", len(r.settings))
	}
	for _, c := range r.settings {
		dir := t.TempDir()
		file := filepath.Join(dir, "config.yaml")
		text := strings.ReplaceAll(c.Data["config.yaml"], "/var/lib/registry", dir)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), distribution.Build(t), "garbage-collect", "--dry-run", file)
		cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
		out, err := cmd.CombinedOutput()
		// It reads the configuration, and then finds that there are no repositories yet.
		understood := err == nil || strings.Contains(string(out), "repositories")
		if !understood || strings.Contains(string(out), "configuration error") {
			t.Errorf("%s: %v: %s", c.Name, err, out)
		}
	}
}
