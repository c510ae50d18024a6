// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// FrozenStatus is how a frozen pod is kept.
type FrozenStatus struct {
	Since time.Time `json:"since"`
	// ResidentBytes and SwappedBytes are its memory in RAM and in swap; 0 while they are not measured.
	ResidentBytes uint64 `json:"residentBytes,omitempty"`
	SwappedBytes  uint64 `json:"swappedBytes,omitempty"`
	// Reason says why its memory was not given back; empty if it was, or if it should stay.
	Reason string `json:"reason,omitempty"`
}

// stillness is the state of a pod's freezing.
type stillness struct {
	report *wire.Frozen // the last one, if the pod is frozen; else nil
	// since is a measurement after the pod's last packet; zero if there is none.
	since   runtime.Usage
	measure bool // the pod is being measured
}

func (s stillness) status() *FrozenStatus {
	if s.report == nil {
		return nil
	}
	return &FrozenStatus{
		Since: s.report.At.Wall(), ResidentBytes: s.report.Resident, SwappedBytes: s.report.Swapped,
		Reason: s.report.Reason,
	}
}
