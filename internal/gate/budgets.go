// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Budget limits how often something happens: Burst times at once, and PerSecond times a second in the long run. The
// zero value is without limit.
type Budget struct {
	Burst     uint32
	PerSecond float64
}

// String returns BURST,PERSECOND.
func (b *Budget) String() string { return fmt.Sprintf("%d,%g", b.Burst, b.PerSecond) }

// Set parses BURST,PERSECOND; 0 is without limit. With String and Type it makes a Budget a command line flag.
func (b *Budget) Set(text string) error {
	burst, rate, _ := strings.Cut(text, ",")
	n, err := strconv.ParseUint(burst, 10, 32)
	if err != nil {
		return fmt.Errorf("%q: want BURST,PERSECOND, such as 100,1", text)
	}
	p := 0.0
	if n > 0 {
		if p, err = strconv.ParseFloat(rate, 64); err != nil {
			return fmt.Errorf("%q: want BURST,PERSECOND, such as 100,1", text)
		}
	}
	set := Budget{uint32(n), p}
	if err := set.check(); err != nil {
		return err
	}
	*b = set
	return nil
}

// Type is the placeholder of the value in help texts.
func (b *Budget) Type() string { return "BURST,PERSECOND" }

// interval is the time after which the budget has one more, in ns.
func (b Budget) interval() uint64 {
	if b.Burst == 0 {
		return 0
	}
	return uint64(float64(time.Second) / b.PerSecond)
}

// check returns an error for an implausible rate.
func (b Budget) check() error {
	if b.Burst > 0 && (b.PerSecond < 1.0/3600 || b.PerSecond > 1e6) {
		return fmt.Errorf("budget of wakes: %g a second: want between one an hour and 1,000,000 a second", b.PerSecond)
	}
	return nil
}

// WakeBudgets limit the wakes that clients may start before they must prove that they are where they claim to be.
type WakeBudgets struct {
	Node    Budget // wakes on this node
	Service Budget // wakes of each service
	Source  Budget // wakes by clients of each /24
	Proven  Budget // wakes by clients of each /24 that have proven where they are; beyond it their SYNs are dropped
	Parked  uint32 // SYNs that a waking service keeps for unproven clients; 0 is without limit
}

// WakeScope is one of the WakeBudgets that limit wakes.
type WakeScope uint32

// The budgets of wakes.
const (
	WakesNode    = WakeScope(gateWakeScopeWAKES_NODE)    // WakeBudgets.Node
	WakesService = WakeScope(gateWakeScopeWAKES_SERVICE) // WakeBudgets.Service
	WakesSource  = WakeScope(gateWakeScopeWAKES_SOURCE)  // WakeBudgets.Source
	WakesProven  = WakeScope(gateWakeScopeWAKES_PROVEN)  // WakeBudgets.Proven
)

// DefaultWakeBudgets are the default budgets of a daemon. Ordinary use stays below them.
func DefaultWakeBudgets() WakeBudgets {
	return WakeBudgets{
		Node: Budget{1000, 50}, Service: Budget{100, 1}, Source: Budget{200, 10}, Proven: Budget{1000, 50}, Parked: 16,
	}
}

func (b *WakeBudgets) intervals() (v [gateWakeScopeWAKE_SCOPES]uint64) {
	v[gateWakeScopeWAKES_NODE] = b.Node.interval()
	v[gateWakeScopeWAKES_SERVICE] = b.Service.interval()
	v[gateWakeScopeWAKES_SOURCE] = b.Source.interval()
	v[gateWakeScopeWAKES_PROVEN] = b.Proven.interval()
	return v
}

func (b *WakeBudgets) bursts() (v [gateWakeScopeWAKE_SCOPES]uint64) {
	v[gateWakeScopeWAKES_NODE] = uint64(b.Node.Burst)
	v[gateWakeScopeWAKES_SERVICE] = uint64(b.Service.Burst)
	v[gateWakeScopeWAKES_SOURCE] = uint64(b.Source.Burst)
	v[gateWakeScopeWAKES_PROVEN] = uint64(b.Proven.Burst)
	return v
}

func (b *WakeBudgets) check() error {
	return errors.Join(b.Node.check(), b.Service.check(), b.Source.check(), b.Proven.check())
}

// Proof says when a client that wakes a service has to prove that it is where it claims to be.
type Proof uint8

// When a proof is asked for.
const (
	ProofAuto   Proof = iota // beyond the budgets
	ProofAlways              // for each wake
	ProofNever               // never: what exceeds the budgets is dropped
)

// proofKeyWords is a key as the programs read it.
func proofKeyWords(key [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
}

// prefixOf returns the /24 of an IPv4 address in network byte order.
func prefixOf(client uint32) netip.Prefix {
	p, _ := fromBE(client).Prefix(24)
	return p
}
