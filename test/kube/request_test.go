// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// awaitProxy waits until the kube-proxy of a node serves a Service, which the product has no part in. It tries again
// soon, because connection tracking pins a connection to the rules at its start, so that one from before kube-proxy has
// its rules is never answered.
func awaitProxy(t *testing.T, from *netlab.Namespace, address string) {
	t.Helper()
	c := e2e.HTTPClient(from, false)
	c.Timeout = 3 * time.Second
	e2e.Eventually(t, from.Name+": kube-proxy knows the Service", func() (bool, string) {
		_, err := e2e.AskBy(c, address)
		return err == nil, fmt.Sprint(err)
	})
}

// timedAsk is e2e.MustAsk with the time that the answer took.
func timedAsk(t *testing.T, from *netlab.Namespace, address string) (e2e.Answer, time.Duration) {
	t.Helper()
	begin := time.Now()
	return e2e.MustAsk(t, from, address), time.Since(begin)
}

// keepAsking starts a load of one client, each request on a new connection, without long pauses.
func keepAsking(t *testing.T, from *netlab.Namespace, address string) *e2e.Load {
	t.Helper()
	return e2e.StartLoad(t, address, e2e.Client{From: from, Pause: 5 * time.Millisecond})
}
