// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// capability is a capability(7) that Wangell uses.
type capability struct {
	name     string
	bit      uint
	required bool
	use      string
}

var capabilities = []capability{
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, true, "mounts and network namespaces of pods"},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, true, "devices, routes and attaching the gate"},
	{"CAP_BPF", unix.CAP_BPF, true, "loading the gate"},
	{"CAP_PERFMON", unix.CAP_PERFMON, true, "watching sockets enter LISTEN"},
	{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, false, "lowering the out-of-memory score of containers"},
}

// RootCheck is the name of a check whose failure makes most others fail.
const RootCheck = "root"

// rights checks the user and its effective capabilities. status is the path of /proc/self/status.
func rights(status string) []Check {
	root := Check{Name: RootCheck, Group: Rights, Required: true, For: "starting containers", Do: "run it with sudo"}
	if uid := os.Geteuid(); uid == 0 {
		root = root.ok("uid 0")
	} else {
		root = root.missing(fmt.Sprintf("uid %d", uid))
	}
	checks := []Check{root}

	effective, err := effectiveCapabilities(status)
	for _, c := range capabilities {
		check := Check{
			Name: c.name, Group: Rights, Required: c.required, For: c.use,
			Do: "run it with sudo; in a container, grant " + c.name,
		}
		switch {
		case err != nil:
			check = check.skipped(err.Error())
		case effective&(1<<c.bit) != 0:
			check = check.ok("effective")
		case c.required:
			check = check.missing("not effective")
		default:
			check = check.warn("not effective; containers keep the score of Wangell")
			check.Do = ""
		}
		checks = append(checks, check)
	}
	return checks
}

// effectiveCapabilities reads CapEff, 64 bits in hexadecimal, from a status file of proc(5).
func effectiveCapabilities(status string) (uint64, error) {
	f, err := os.Open(status)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "CapEff:"); ok {
			v, err := strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: CapEff: %w", status, err)
			}
			return v, nil
		}
	}
	return 0, fmt.Errorf("%s: no CapEff line", status)
}
