// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Budget limits how often something happens: Burst times at once, and PerSecond times a second in the long run. The
// zero value means no limit.
type Budget struct {
	Burst     uint32
	PerSecond float64
}

// String returns BURST,PERSECOND.
func (b *Budget) String() string { return fmt.Sprintf("%d,%g", b.Burst, b.PerSecond) }

// Set parses BURST,PERSECOND; 0 means no limit. With String and Type it makes a Budget a command line flag.
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

// Type returns the placeholder of the value in help texts.
func (b *Budget) Type() string { return "BURST,PERSECOND" }

// interval is the time after which the budget allows one more, in ns.
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

// WakeBudgets limit the wakes that clients may cause before they must prove their source address.
type WakeBudgets struct {
	Node    Budget // wakes on this node
	Service Budget // wakes of each service
	Source  Budget // wakes by clients of each /24
	Proven  Budget // wakes by clients of each /24 that have proven their address; beyond it their SYNs are dropped
	Parked  uint32 // SYNs that a waking service keeps for unproven clients; 0 means no limit
}

// WakeScope names one of the budgets in WakeBudgets.
type WakeScope uint32

// The wake budgets.
const (
	WakesNode    = WakeScope(gateWakeScopeWAKES_NODE)    // WakeBudgets.Node
	WakesService = WakeScope(gateWakeScopeWAKES_SERVICE) // WakeBudgets.Service
	WakesSource  = WakeScope(gateWakeScopeWAKES_SOURCE)  // WakeBudgets.Source
	WakesProven  = WakeScope(gateWakeScopeWAKES_PROVEN)  // WakeBudgets.Proven
)

// DefaultWakeBudgets returns the default budgets of a daemon. Ordinary use stays below them.
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

// Proof says when a client that wakes a service must prove its source address.
type Proof uint8

// The values of Proof.
const (
	ProofAuto   Proof = iota // beyond the budgets
	ProofAlways              // for each wake
	ProofNever               // never: SYNs beyond the budgets are dropped
)

// proofKeyWords returns a key in the form in which the programs read it.
func proofKeyWords(key [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
}

// prefixOf returns the /24 of an IPv4 address in network byte order.
func prefixOf(client uint32) netip.Prefix {
	p, _ := fromBE(client).Prefix(24)
	return p
}

// doubts tracks whether wakes led to connections.
type doubts struct {
	mu sync.Mutex
	of map[uint32]visits // by the service's index
}

// visits is the gate's record of a service since its pods were last gone.
type visits struct {
	wakes uint64 // its count of wakes at that time
	used  bool   // a connection was established to a pod that is gone already
	front uint64 // connections of its front at that time
}

// forget forgets a service whose index is reused.
func (d *doubts) forget(service uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, service)
}

// podGone records that a pod is gone and whether it had connections. If it was the last pod, podGone reports whether
// this gate woke the service in vain, that is, no client has connected. wakes and front are the counts of wakes and of
// the front's connections.
func (d *doubts) podGone(service uint32, used, last bool, wakes, front uint64) (inVain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.of[service]
	v.used = v.used || used
	if last {
		inVain = !v.used && front == v.front && wakes != v.wakes
		v = visits{wakes: wakes, front: front}
	}
	d.of[service] = v
	return inVain
}

// waryFlags are the flags of a service's status that change with its pods rather than with its configuration. While one
// is set, a SYN is parked only if its client has proven its address, so that forged SYNs neither keep draining pods nor
// wake the service again.
const waryFlags = uint32(gateServiceFlagSERVICE_DRAINS | gateServiceFlagSERVICE_DOUBTED)

// DrainAll announces that all pods of a service are about to drain, so that Drain makes it cold. Until a pod serves
// again or the last one is removed, a SYN is parked only if its client has proven its address: a forged SYN is no new
// client. A service with ProofNever parks them all.
func (g *Gate) DrainAll(service netip.AddrPort) {
	if s, ok := g.services.index(service); ok {
		g.statuses.at(s).setFlags(uint32(gateServiceFlagSERVICE_DRAINS), uint32(gateServiceFlagSERVICE_DRAINS))
	}
}

// judgeWake records that a pod is gone. With the last pod of a service, it ends DrainAll: if clients of this gate have
// woken the service and none has connected, the next client must prove its address. A crash of a pod raises no such
// doubt.
func (g *Gate) judgeWake(service uint32, used, last bool, front uint64) {
	st := g.statuses.at(service)
	inVain := g.doubts.podGone(service, used, last, atomic.LoadUint64(&st.Wakes), front)
	if !last || atomic.LoadUint32(&st.Flags)&uint32(gateServiceFlagSERVICE_DRAINS) == 0 {
		return
	}
	doubted := uint32(0)
	if inVain {
		doubted = uint32(gateServiceFlagSERVICE_DOUBTED)
	}
	st.setFlags(waryFlags, doubted)
}

// setFlags replaces the flags that a mask selects. It returns whether that changed them.
func (st *gateServiceStatus) setFlags(mask, flags uint32) bool {
	for {
		old := atomic.LoadUint32(&st.Flags)
		set := old&^mask | flags&mask
		if atomic.CompareAndSwapUint32(&st.Flags, old, set) {
			return set != old
		}
	}
}
