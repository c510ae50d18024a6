// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"wangell.loutres.me/test/testutil/e2e"
)

// testOrder looks at the programs of all devices of a node that runs a pod of a service: where the gate is, it is the
// first, as those of a CNI plugin may end the chain.
func testOrder(t *testing.T) {
	home := lab.nodes[1]
	const key = "default/ordered"
	lab.apply(t, on(home, key))
	e2e.MustAsk(t, lab.client, lab.address(t, key))
	e2e.Eventually(t, "the gate is first", func() (bool, string) {
		chains, err := home.programs()
		text := fmt.Sprintf("%q, %v", chains, err)
		gates, shared := 0, 0
		for _, chain := range chains {
			switch at := slices.IndexFunc(chain, ofGate); {
			case at > 0:
				return false, text
			case at == 0:
				gates++
				if slices.ContainsFunc(chain, func(program string) bool { return !ofGate(program) }) {
					shared++
				}
			}
		}
		t.Log(text)
		// The gate is on the LAN's interface, its own and the pod's. On two of them are programs of Cilium, too.
		return err == nil && gates >= 3 && (shared >= 2 || os.Getenv("WANGELL_TEST_CNI") != "cilium"), text
	})
	e2e.MustAsk(t, lab.client, lab.address(t, key))
}

func ofGate(program string) bool { return strings.HasPrefix(program, "gate_") }

// programs returns the names of the programs at tcx ingress of each device of a node, in their order.
func (n *node) programs() (map[string][]string, error) {
	chains := map[string][]string{}
	err := n.ns.Do(func() error {
		devices, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, d := range devices {
			all, err := link.QueryPrograms(link.QueryOptions{Target: d.Index, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return fmt.Errorf("programs of %s: %w", d.Name, err)
			}
			for _, attached := range all.Programs {
				name, err := programName(attached.ID)
				if err != nil {
					return fmt.Errorf("programs of %s: %w", d.Name, err)
				}
				chains[d.Name] = append(chains[d.Name], name)
			}
		}
		return nil
	})
	return chains, err
}

func programName(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}
