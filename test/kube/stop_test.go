// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/e2e"
)

// testStubborn puts a service to sleep whose program does not end on its signal, and deletes the pod of one. Users are
// told while the program still runs; they are not told of a program that ends.
func testStubborn(t *testing.T) {
	const polite, rest = "default/polite", "idleTimeout: 600\nterminationGracePeriodSeconds: 30\n"
	stubborn := []string{"default/sleeper", "default/deleted"}
	lab.apply(t, manifest(polite, rest))
	for _, key := range stubborn {
		lab.apply(t, manifest(key, rest+"env: [{name: STOP_DELAY, value: 1h}]"))
	}
	for _, key := range append(stubborn, polite) {
		e2e.MustAsk(t, lab.client, lab.address(t, key))
		lab.waitState(t, key, "Warm")
	}
	e2e.Must(lab.kubectl("", "delete", "pod", "-n", "default", "-l", "wangell.loutres.me/service=deleted",
		"--wait=false"))(t)
	for _, key := range []string{stubborn[0], polite} {
		if err := lab.scale(key, 0); err != nil {
			t.Fatal(err)
		}
	}
	const told = "did not end within 2s of its stop signal: it is killed 27s after the signal"
	for _, key := range stubborn {
		lab.message(t, key, told, true) // until the program is killed
	}
	for _, key := range stubborn {
		e2e.Eventually(t, key+": its event", func() (bool, string) {
			events := lab.eventsOf(t, key)
			return strings.Contains(events, "Problem") && strings.Contains(events, told), events
		})
		lab.message(t, key, told, false)
	}
	if events := lab.eventsOf(t, polite); strings.Contains(events, "stop signal") {
		t.Errorf("of a program that ends on its signal: %s", events)
	}
}

// message waits until the message in the status of a service has a text, or has not.
func (c *cluster) message(t *testing.T, key, text string, there bool) {
	t.Helper()
	e2e.Eventually(t, fmt.Sprintf("%s: a message with %q: %t", key, text, there), func() (bool, string) {
		message := c.get(t, key).Status.Message
		return strings.Contains(message, text) == there, message
	})
}

// eventsOf returns the events about a service, a line each.
func (c *cluster) eventsOf(t *testing.T, key string) string {
	t.Helper()
	return e2e.Must(c.kubectl("", "get", "events", "-n", nameOf(key).Namespace, "--field-selector",
		"involvedObject.kind=WangellService,involvedObject.name="+nameOf(key).Name))(t)
}
