// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"wangell.loutres.me/test/vm/plan"
)

// check is something that a VM tries.
type check struct {
	name, shows string
	dir         string // below the payload
	args        []string
	seconds     int // its limit
	// files are the files of the repository that the check needs, wangell among them, by their paths below the
	// payload.
	files map[string]string
}

// tests returns the command line of a test binary.
func tests(binary, pattern string) []string {
	return []string{"/payload/" + binary, "-test.v", "-test.failfast", "-test.timeout=20m", "-test.run", pattern}
}

// demo runs hack/demo.sh with an image of the hello program that was compiled outside: a VM has no Go, and as its
// packages are not configured, no awk but gawk.
const demo = `ln --symbolic --force gawk /usr/bin/awk
/payload/wangell image build --tag wangell.local/hello:v1 --file /payload/hello=/hello --entrypoint /hello \
    --user 65532:65532 --out /tmp/hello.tar
WANGELL_DEMO_IMAGE=/tmp/hello.tar exec hack/demo.sh`

// checks are all checks, in the order in which they run. Each test that opens the gate has the kernel verify its
// programs, which takes seconds in an emulator; so the checks select few tests.
var checks = []check{
	{name: "load", shows: "all programs of the gate load, and their size", dir: "internal/gate",
		args: tests("gate.test", "^TestProgramsAndMaps"), seconds: 300},
	{name: "fixtures", shows: "what the gate does with single packets", dir: "internal/gate",
		args: tests("gate.test", "^TestFixtures|^TestTruncated|^TestBadEncapsulation"), seconds: 1200},
	{name: "devices", shows: "VLAN, bond and netkit devices, and XDP on them", dir: "internal/gate",
		args: tests("gate.test", "TestGateServesAt|TestGateIsAttached|TestGateFollowsItsInterfaces"), seconds: 1200},
	{name: "service", shows: "wangell.service under systemd: wake, freeze, kill, adopt, sleep, stop",
		args: []string{"/bin/bash", "/payload/service.sh"}, seconds: 1200, files: map[string]string{
			"wangell.service": "deploy/debian/wangell.service", "hello.yaml": "test/vm/hello.yaml",
			"service.sh": "test/vm/service.sh",
		}},
	{name: "demo", shows: "what make demo runs: wake, serve, and leave nothing", dir: "demo",
		args: []string{"/bin/bash", "-ec", demo}, seconds: 1200, files: map[string]string{
			"demo/hack/demo.sh": "hack/demo.sh", "demo/examples/hello.yaml": "test/vm/hello.yaml",
		}},
}

// chosenChecks returns the checks with the given names; all if there are none.
func chosenChecks(names string) ([]check, error) {
	if names == "" {
		return checks, nil
	}
	var chosen []check
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("--checks: there is no check %q: see --list", name)
		}
		chosen = append(chosen, checks[i])
	}
	return chosen, nil
}

// planFor returns the plan of a VM for the chosen checks.
func planFor(chosen []check) plan.Plan {
	var p plan.Plan
	for _, c := range chosen {
		p.Checks = append(p.Checks, plan.Check{Name: c.name, Dir: c.dir, Args: c.args, Seconds: c.seconds})
	}
	return p
}
