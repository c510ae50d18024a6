// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"

	"wangell.loutres.me/internal/decide/sources"
)

// Service is the configuration of a service.
type Service struct {
	Addr               netip.AddrPort // service address (IPv4)
	MaxParked          uint32         // limit on parked SYNs; 0 refuses all
	MaxParkedPerSource uint32         // limit on parked SYNs from one client address
	Affinity           bool           // a client address keeps its pod
	PreferLocal        bool           // prefer pods on this node
	Retries            uint8          // limit on further pods tried after one did not take a SYN
	Proof              Proof          // when a client that wakes it has to prove itself
	Restricted         bool           // only sources that the rules allow may connect
	Sources            []sources.Rule // the rules, if it is restricted
}

// flagBits returns the service's enum service_flag bits.
func (s *Service) flagBits() (flags uint32) {
	if s.Affinity {
		flags |= uint32(gateServiceFlagSERVICE_AFFINITY)
	}
	if s.PreferLocal {
		flags |= uint32(gateServiceFlagSERVICE_PREFER_LOCAL)
	}
	if s.Restricted {
		flags |= uint32(gateServiceFlagSERVICE_SOURCES)
	}
	switch s.Proof {
	case ProofAlways:
		flags |= uint32(gateServiceFlagSERVICE_PROOF_ALWAYS)
	case ProofNever:
		flags |= uint32(gateServiceFlagSERVICE_PROOF_NEVER)
	}
	return flags
}
