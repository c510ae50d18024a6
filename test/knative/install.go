// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// readyTimeout is how long the deployments may take to become ready, which includes unpacking seven images.
const readyTimeout = 5 * time.Minute

// deployments have to become ready, by namespace.
var deployments = map[string][]string{
	"knative-serving": {"activator", "autoscaler", "controller", "webhook", "net-kourier-controller"},
	"kourier-system":  {"3scale-kourier-gateway"},
}

// install pushes the images, applies the manifests, and waits until everything is ready. Grace is Knative's
// scale-to-zero-grace-period.
func install(ctx context.Context, c *cluster, b *built, grace time.Duration) error {
	images := map[string]string{}
	for _, program := range append([]string{"envoy"}, sortedPrograms()...) {
		reference, err := push(ctx, c, b, program)
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
		images[program] = reference
	}
	first, rest, err := manifestsOf(b, images, grace)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	apply := []string{"apply", "--server-side", "--force-conflicts", "--field-manager=wangell-test", "-f", "-"}
	if err := c.kubectl(ctx, marshal(first), apply...); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	err = c.kubectl(ctx, nil, "wait", "crd", "--selector=app.kubernetes.io/name=knative-serving",
		"--for=condition=Established", "--timeout=60s")
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if err := c.kubectl(ctx, marshal(rest), apply...); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	for namespace, names := range deployments {
		args := []string{"wait", "--namespace=" + namespace, "--for=condition=Available",
			"--timeout=" + readyTimeout.String()}
		for _, name := range names {
			args = append(args, "deployment/"+name)
		}
		if err := c.kubectl(ctx, nil, args...); err != nil {
			return fmt.Errorf("install: not ready: %w", err)
		}
	}
	return nil
}

// uninstall removes Knative and its services, and waits until they are gone.
func uninstall(ctx context.Context, c *cluster) error {
	b := &built{Modules: map[string]module{}}
	for _, path := range modules {
		m, err := findModule(ctx, path)
		if err != nil {
			return fmt.Errorf("uninstall: %w", err)
		}
		b.Modules[path] = m
	}
	images := map[string]string{"envoy": "none"} // only names matter for deletion
	for program := range programs {
		images[program] = "none"
	}
	first, rest, err := manifestsOf(b, images, defaultGrace)
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	wait := "--timeout=" + readyTimeout.String()
	if err := c.kubectl(ctx, nil, "get", "crd", "services.serving.knative.dev"); err == nil {
		err := c.kubectl(ctx, nil, "delete", "services.serving.knative.dev", "--all", "--all-namespaces",
			"--cascade=foreground", wait)
		if err != nil {
			return fmt.Errorf("uninstall: %w", err)
		}
	}
	// A webhook without its deployment would refuse every change.
	const webhooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
	err = c.kubectl(ctx, nil, "delete", webhooks, "--selector=app.kubernetes.io/name=knative-serving", wait)
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	// Pods go before their owners and namespaces, which would grant them their grace period of up to ten minutes.
	for namespace := range deployments {
		for _, args := range [][]string{
			{"delete", "deployments", "--all", "--cascade=orphan"},
			{"delete", "replicasets", "--all", "--cascade=orphan"},
			{"delete", "pods", "--all", "--grace-period=1"},
		} {
			if err := c.kubectl(ctx, nil, append(args, "--namespace="+namespace, wait)...); err != nil {
				return fmt.Errorf("uninstall: %w", err)
			}
		}
	}
	// Knative's own kinds may not exist any more. Their objects go with the namespace.
	rest = slices.DeleteFunc(rest, func(o object) bool {
		version, _ := o["apiVersion"].(string)
		return strings.Contains(version, ".knative.dev/")
	})
	for _, objects := range [][]object{rest, first} {
		if err := c.kubectl(ctx, marshal(objects), "delete", "--ignore-not-found", wait, "-f", "-"); err != nil {
			return fmt.Errorf("uninstall: %w", err)
		}
	}
	return nil
}

// manifestsOf returns the manifests of what must exist first, and of everything else.
func manifestsOf(b *built, images map[string]string, grace time.Duration) (first, rest []object, err error) {
	text, err := readManifests(b.Modules)
	if err != nil {
		return nil, nil, err
	}
	objects, err := render(text, images, grace)
	if err != nil {
		return nil, nil, err
	}
	first, rest = split(objects)
	return first, rest, nil
}
