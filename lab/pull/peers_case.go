// SPDX-License-Identifier: Apache-2.0

package pull

// mostPeers is the number of nodes that pull at once, at most.
const mostPeers = 3

// peerCase is a pull by several nodes at once.
type peerCase struct {
	nodes int
	peers bool
	fault string
	// open says that the registry's link has no limit.
	open bool
}

// peerCases are the pulls of a round, and then those with faults.
func peerCases(rounds int) []peerCase {
	var all []peerCase
	for range rounds {
		for n := 1; n <= mostPeers; n++ {
			all = append(all, peerCase{nodes: n}, peerCase{nodes: n, peers: true})
		}
		all = append(all, peerCase{nodes: 1, open: true}, peerCase{nodes: mostPeers, open: true})
	}
	for _, fault := range AllPeerFaults {
		all = append(all, peerCase{nodes: mostPeers, peers: true, fault: fault})
	}
	return all
}

// words are what is special about a case, for people.
func (c peerCase) words() string {
	if c.open {
		return "link without limit"
	}
	return faultWords[c.fault]
}

// faultWords are the faults for people.
var faultWords = map[string]string{
	"": "", FaultPeerDies: "one of three dies in the middle", FaultGarbage: "the one that has it sends wrong bytes",
	FaultRegistryGone: "one has it and the registry is gone", FaultLeader: "another controller from the middle on",
}

// onOff is how the keys of the summary name it.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
