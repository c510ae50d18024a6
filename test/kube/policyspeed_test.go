// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	// policyBar is the time within which a change of a policy is to be in force.
	policyBar = time.Second
	// policyFactor is how many times as long as a change of spec.allowFrom it may take all the same, on a machine that is
	// too busy for the bar. Both go from the API server through the controller and the wire into the gates' maps.
	policyFactor = 5
	// blink is how long a client waits that tries again until it is let in.
	blink = 50 * time.Millisecond
)

// testPolicySpeed changes the policy "friends" of a service that runs, and the allowFrom of another one, in turns, and
// compares how long it takes until a client is let in.
func testPolicySpeed(t *testing.T, addr string) {
	const rounds, key, nobody = 5, "default/listed", "192.0.2.1"
	lab.apply(t, manifest(key, "idleTimeout: 600"))
	listed := lab.address(t, key)
	e2e.MustAsk(t, lab.client, listed)
	policy := func(source string) error {
		return lab.patch(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "policed", Name: "friends"}},
			`{"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"%s/32"}}],"ports":[{"port":8080}]}]}}`, source)
	}
	ordinary := func(source string) error {
		of := nameOf(key)
		return lab.patch(&v1alpha1.WangellService{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}},
			`{"spec":{"allowFrom":["%s/32"]}}`, source)
	}
	var took [2][]time.Duration
	for range rounds {
		for i, c := range []struct {
			address string
			allow   func(source string) error
		}{{addr, policy}, {listed, ordinary}} {
			if err := c.allow(nobody); err != nil {
				t.Fatal(err)
			}
			e2e.Eventually(t, c.address+": denied", func() (bool, string) {
				return connect(lab.client, c.address, silence) != nil, "let in"
			})
			took[i] = append(took[i], letIn(t, lab.client, c.address, func() error { return c.allow(lab.Client.IP) }))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	median, other := took[0][rounds/2], took[1][rounds/2]
	t.Logf("in force after %v, a change of allowFrom after %v", took[0], took[1])
	if median > policyBar && median > policyFactor*other {
		t.Errorf("a change of a policy is in force after %v, one of allowFrom after %v", median, other)
	}
}

// letIn makes a change and returns the time from its begin until a client is let in.
func letIn(t *testing.T, from *netlab.Namespace, address string, change func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := change(); err != nil {
		t.Fatal(err)
	}
	for {
		err := connect(from, address, blink)
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > e2e.Patience {
			t.Fatalf("%s is not let in to %s: %v", from.Name, address, err)
		}
	}
}

// patch changes an object by a merge patch.
func (c *cluster) patch(o client.Object, format string, args ...any) error {
	change := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
	if err := c.call(func(ctx context.Context) error { return c.api.Patch(ctx, o, change) }); err != nil {
		return fmt.Errorf("change %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return nil
}
