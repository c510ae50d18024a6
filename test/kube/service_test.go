// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/e2e"
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
	s := new(v1alpha1.WangellService)
	return s, c.read(key, s)
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
func (c *cluster) pods(t *testing.T, key string) (names []string) {
	t.Helper()
	var pods corev1.PodList
	if err := c.list(key, &pods); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		names = append(names, p.Name)
	}
	return names
}

// deployment summarizes a service's Deployment: whether it is paused, how many pods it wants and has, and the number of
// ReplicaSets.
func (c *cluster) deployment(t *testing.T, key string) string {
	t.Helper()
	var d appsv1.Deployment
	var sets appsv1.ReplicaSetList
	if err := errors.Join(c.read(key, &d), c.list(key, &sets)); err != nil {
		t.Fatal(err)
	}
	paused, wants, has := "", "", ""
	if d.Spec.Paused {
		paused = "true"
	}
	if d.Spec.Replicas != nil {
		wants = fmt.Sprint(*d.Spec.Replicas)
	}
	if d.Status.Replicas > 0 {
		has = fmt.Sprint(d.Status.Replicas)
	}
	return fmt.Sprintf("paused=%s wants=%s has=%s sets=%d", paused, wants, has, len(sets.Items))
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
	// The status may still be older than the wake.
	e2e.Eventually(t, key+": cold, and without a pod", func() (bool, string) {
		if err := c.scale(key, 0); err != nil {
			return false, err.Error()
		}
		if p := c.pods(t, key); len(p) > 0 {
			return false, strings.Join(p, " ")
		}
		s := c.get(t, key)
		return s.Status.State == "Cold" && s.Status.Replicas == 0, fmt.Sprintf("%+v", s.Status)
	})
}

// scale sets the number of pods of a service, as kubectl scale does.
func (c *cluster) scale(key string, replicas int) error {
	of := nameOf(key)
	service := &v1alpha1.WangellService{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}}
	change := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	err := c.call(func(ctx context.Context) error {
		return c.api.SubResource("scale").Patch(ctx, service, change, client.WithSubResourceBody(new(autoscalingv1.Scale)))
	})
	if err != nil {
		return fmt.Errorf("scale %s to %d: %w", key, replicas, err)
	}
	return nil
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
