// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/testutil/e2e"
)

// get returns a WangellService.
func (c *cluster) get(t *testing.T, key string) *v1alpha1.WangellService {
	t.Helper()
	s, err := c.find(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *cluster) find(key string) (*v1alpha1.WangellService, error) {
	namespace, name, _ := strings.Cut(key, "/")
	out, err := c.kubectl("", "get", "wgs", "-n", namespace, name, "-o", "json")
	if err != nil {
		return nil, err
	}
	s := new(v1alpha1.WangellService)
	return s, json.Unmarshal([]byte(out), s)
}

// apply applies a document and deletes its objects at the end of the test.
func (c *cluster) apply(t *testing.T, doc string) {
	t.Helper()
	e2e.Must(c.kubectl(doc, "apply", "-f", "-"))(t)
	t.Cleanup(func() {
		if _, err := c.kubectl(doc, "delete", "--ignore-not-found", "--wait", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
}

// address waits until a service has its address.
func (c *cluster) address(t *testing.T, key string) string {
	t.Helper()
	var addr string
	e2e.Eventually(t, key+": an address", func() (bool, string) {
		s, err := c.find(key)
		if err != nil {
			return false, err.Error()
		}
		ip, err := netip.ParseAddr(s.Status.LoadBalancerIP)
		addr = fmt.Sprintf("%v:%d", ip, s.Spec.Port)
		return err == nil && s.Status.State != "", fmt.Sprintf("%+v", s.Status)
	})
	return addr
}

// waitState waits for a state of a service.
func (c *cluster) waitState(t *testing.T, key, state string) {
	t.Helper()
	e2e.Eventually(t, key+": state "+state, func() (bool, string) {
		s, err := c.find(key)
		if err != nil {
			return false, err.Error()
		}
		return s.Status.State == state, fmt.Sprintf("%+v", s.Status)
	})
}

// pods returns the names of a service's pods, including terminating ones.
func (c *cluster) pods(t *testing.T, key string) []string {
	t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	return strings.Fields(e2e.Must(c.kubectl("", "get", "pods", "-n", namespace, "-l", "wangell.loutres.me/service="+name,
		"-o", "jsonpath={.items[*].metadata.name}"))(t))
}

// deployment summarizes a service's Deployment: whether it is paused, how many pods it wants and has, and the number of
// ReplicaSets.
func (c *cluster) deployment(t *testing.T, key string) string {
	t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	d := e2e.Must(c.kubectl("", "get", "deployment", "-n", namespace, name, "-o",
		"jsonpath={.spec.paused} wants={.spec.replicas} has={.status.replicas}"))(t)
	sets := e2e.Must(c.kubectl("", "get", "replicasets", "-n", namespace, "-l", "wangell.loutres.me/service="+name, "-o",
		"name"))(t)
	return fmt.Sprintf("paused=%s sets=%d", d, len(strings.Fields(sets)))
}

// waitDeployment waits for a summary of a service's Deployment.
func (c *cluster) waitDeployment(t *testing.T, key, want string) {
	t.Helper()
	e2e.Eventually(t, fmt.Sprintf("the Deployment of %s: %s", key, want), func() (bool, string) {
		d := c.deployment(t, key)
		return d == want, d
	})
}

// sleep puts a service to sleep and waits until it has no pod.
func (c *cluster) sleep(t *testing.T, key string) {
	t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	// The status may still be older than the wake.
	e2e.Eventually(t, key+": cold, and without a pod", func() (bool, string) {
		if _, err := c.kubectl("", "scale", "wgs", "-n", namespace, name, "--replicas=0"); err != nil {
			return false, err.Error()
		}
		if p := c.pods(t, key); len(p) > 0 {
			return false, strings.Join(p, " ")
		}
		s := c.get(t, key)
		return s.Status.State == "Cold" && s.Status.Replicas == 0, fmt.Sprintf("%+v", s.Status)
	})
}

// waitCold waits until a service sleeps and has no pod.
func (c *cluster) waitCold(t *testing.T, key string) {
	t.Helper()
	c.waitState(t, key, "Cold")
	e2e.Eventually(t, key+": no pod", func() (bool, string) {
		p := c.pods(t, key)
		return len(p) == 0, strings.Join(p, " ")
	})
}

// manifest is a service of the tests' server. More is added to its spec, indented by two.
func manifest(key, more string) string {
	namespace, name, _ := strings.Cut(key, "/")
	doc := fmt.Sprintf("apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\n"+
		"metadata: {name: %s, namespace: %s}\nspec:\n  image: %s\n  targetPort: 8080\n  port: 80\n",
		name, namespace, serverImage)
	for line := range strings.Lines(more) {
		doc += "  " + line
	}
	return doc + "\n"
}
