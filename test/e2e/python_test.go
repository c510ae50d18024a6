// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/e2e"
)

// Python has no handler for SIGTERM, and as PID 1 it would ignore it. The example names the signal that it handles, and
// has it started by another program; without both, the runtime ends it, as nothing is gained by waiting. The grace
// period is longer than the test waits.
func TestPythonExampleSleepsWithoutItsGracePeriod(t *testing.T) {
	const officialImage = "docker.io/library/python:3.13-slim"
	text, err := os.ReadFile("../../examples/python.yaml")
	if err != nil {
		t.Fatal(err)
	}
	server := debian(t, debimage.Recipe{Name: "python", Packages: []string{"python3"}, Port: 8000})
	example := strings.Replace(string(text), officialImage, server.image, 1) + "  terminationGracePeriodSeconds: 3600\n"
	bare := strings.NewReplacer("name: python", "name: bare", "  stopSignal: SIGINT\n", "", "  init: true\n", "").
		Replace(example)
	if !strings.Contains(example, server.image) || strings.Contains(bare, "SIGINT\n") || strings.Contains(bare, "init:") {
		t.Fatalf("the example has changed:\n%s", text)
	}
	l := newLab(t, 1)
	l.startWith(t, example+"---\n"+bare, "-f", "-")
	for _, name := range []string{"python", "bare"} {
		listing, err := e2e.Get(l.Client(), l.address(t, name), "/")
		if err != nil || !strings.Contains(string(listing), "Directory listing") {
			t.Errorf("%s answers %q, %v", name, listing, err)
		}
		l.untilNoFlows(t, name)
		s := l.until(t, name, "warm", isState("Warm"))
		if said := l.must(t, "sleep", name); strings.Contains(said, "did not end") {
			t.Errorf("%s, with message %q: %s", name, s.Service.Status.Message, said)
		}
		l.untilAsleep(t, name)
	}
	// What it prints when SIGINT ends it.
	if logs := l.must(t, "logs", "python"); !strings.Contains(logs, "Keyboard interrupt received, exiting.") {
		t.Errorf("the example was not ended by SIGINT: %s", logs)
	}
}
