// SPDX-License-Identifier: Apache-2.0

package node

import (
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// writeService writes a service's configuration to the gate.
func (d *daemon) writeService(u wire.Service) error {
	proof := gate.ProofAuto
	switch {
	case u.Flags&wire.FlagProofAlways != 0:
		proof = gate.ProofAlways
	case u.Flags&wire.FlagProofNever != 0:
		proof = gate.ProofNever
	}
	_, err := d.gate.SetService(gate.Service{
		Addr: u.Addr, MaxParked: uint32(u.MaxParked), MaxParkedPerSource: uint32(u.MaxParkedPerSource),
		Affinity: u.Flags&wire.FlagAffinity != 0, PreferLocal: u.Flags&wire.FlagPreferLocal != 0, Retries: u.Retries,
		Proof: proof, Restricted: u.Flags&wire.FlagSources != 0, Sources: d.fronts.allow(u),
	})
	return err
}
