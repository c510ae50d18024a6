// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"wangell.loutres.me/api/v1alpha1"
)

// addressError is why a service has no address.
type addressError struct {
	reason  string // of the condition AddressAssigned
	message string
}

// Error implements error.
func (e addressError) Error() string { return e.message }

// book records which service has which address. It is rebuilt from the status of the services.
type book struct {
	pools Pools
	rules AddressRules
	now   func() time.Time
	held  map[netip.Addr]v1alpha1.Key
	of    map[v1alpha1.Key]netip.Addr
	// left are addresses that services had. Others get them last, so that a service that is created again gets its own
	// back, and other namespaces not before the quarantine is over.
	left map[netip.Addr]formerly
	// changed is told that left has changed. It holds one element.
	changed chan struct{}
}

// formerly is what had an address, and until when.
type formerly struct {
	key   v1alpha1.Key
	since time.Time
}

func newBook(pools Pools) *book {
	return &book{pools: pools, rules: AddressRules{Quarantine: defaultQuarantine}, now: time.Now,
		held: map[netip.Addr]v1alpha1.Key{}, of: map[v1alpha1.Key]netip.Addr{}, left: map[netip.Addr]formerly{},
		changed: make(chan struct{}, 1)}
}

// claim returns the address of a service in a namespace with these labels: the one in its spec, else its present one,
// else its former one, else one from the pools, which depends only on its name while that one is free. A service keeps
// its address when pools, rules or labels change.
func (b *book) claim(k v1alpha1.Key, asked string, had netip.Addr, of labels.Set) (netip.Addr, error) {
	if asked != "" {
		a, err := netip.ParseAddr(asked)
		switch other, taken := b.held[a]; {
		case err != nil:
			return a, addressError{"Invalid", fmt.Sprintf("spec.address: %v", err)}
		case taken && other == k:
			return a, nil
		case taken:
			return a, addressError{"Conflict", fmt.Sprintf(
				"spec.address %s is already used by service %s: choose another, or leave it out", a, other)}
		case !b.pools.has(a):
			return a, addressError{"OutOfRange", fmt.Sprintf(
				"spec.address %s is not in the pools of service addresses (%s): choose one of these, or leave it out",
				a, b.pools)}
		}
		if err := b.permits(k, a, of); err != nil {
			return a, err
		}
		return b.take(k, a), nil
	}
	if a, has := b.of[k]; has {
		return a, nil
	}
	if _, taken := b.held[had]; had.IsValid() && b.pools.has(had) && !taken && b.permits(k, had, of) == nil {
		return b.take(k, had), nil
	}
	return b.choose(k, of)
}

// choose gives a service without an address one from the pools: one that is reserved for its namespace rather than
// another, and one that no other service had rather than one that has been left.
func (b *book) choose(k v1alpha1.Key, of labels.Set) (netip.Addr, error) {
	size := b.pools.size()
	if size == 0 {
		return netip.Addr{}, addressError{"NoPool", "there is no pool of service addresses: name one under addresses " +
			"in the ConfigMap that the controller's Deployment reads (the chart's value addresses), " +
			"or start the controller with --service-addresses"}
	}
	if err := b.checkQuota(k); err != nil {
		return netip.Addr{}, err
	}
	fresh := func(a netip.Addr) bool { left, was := b.left[a]; return !was || left.key == k }
	own := func(a netip.Addr) bool { reserved, ours := b.rules.reserved(a, of); return reserved && ours }
	preferences := []func(netip.Addr) bool{fresh, func(netip.Addr) bool { return true }}
	if b.rules.hasReserved(of) {
		preferences = append([]func(netip.Addr) bool{func(a netip.Addr) bool { return own(a) && fresh(a) }, own},
			preferences...)
	}
	begin := hash(k) % size
	withheld := map[string]int{}
	for _, mayTake := range preferences {
		clear(withheld)
		for i := range size {
			a := b.pools.at((begin + i) % size)
			if _, taken := b.held[a]; taken || !mayTake(a) {
				continue
			}
			if err := b.withholds(k, a, of); err != nil {
				withheld[err.(addressError).reason]++
				continue
			}
			return b.take(k, a), nil
		}
	}
	if n := withheld["Quarantined"] + withheld["Reserved"]; n > 0 {
		return netip.Addr{}, addressError{"Exhausted", fmt.Sprintf("no address is left for this namespace: of %d addresses "+
			"of the pools (%s), %d were those of other namespaces' services until lately, %d are reserved for other "+
			"namespaces, and the others are in use: add a pool", size, b.pools, withheld["Quarantined"],
			withheld["Reserved"])}
	}
	return netip.Addr{}, addressError{"Exhausted", fmt.Sprintf(
		"no address is left: all %d addresses of the pools (%s) are in use: add a pool", size, b.pools)}
}

// permits returns why a service may not have a free address; nil if it may.
func (b *book) permits(k v1alpha1.Key, a netip.Addr, of labels.Set) error {
	if err := b.checkQuota(k); err != nil {
		return err
	}
	return b.withholds(k, a, of)
}

// withholds returns why services of a namespace may not have a free address, however many they have; nil if they may.
func (b *book) withholds(k v1alpha1.Key, a netip.Addr, of labels.Set) error {
	if reserved, ours := b.rules.reserved(a, of); reserved && !ours {
		return addressError{"Reserved", fmt.Sprintf(
			"spec.address %s is reserved for other namespaces: choose another, or leave it out", a)}
	}
	left, was := b.left[a]
	if was && b.quarantines(left) && namespaceOf(left.key) != namespaceOf(k) {
		return addressError{"Quarantined", fmt.Sprintf("spec.address %s was that of another namespace's service, whose "+
			"clients may still use it: it is free from %s on; choose another, or leave it out", a,
			b.free(left).UTC().Format(time.RFC3339))}
	}
	return nil
}

// free is when the quarantine of an address ends.
func (b *book) free(left formerly) time.Time { return left.since.Add(b.rules.Quarantine) }

func (b *book) quarantines(left formerly) bool { return b.free(left).After(b.now()) }

// checkQuota returns an error if a service without an address must not get one, because its namespace has enough.
func (b *book) checkQuota(k v1alpha1.Key) error {
	most := b.rules.PerNamespace
	if _, has := b.of[k]; has || most == 0 {
		return nil
	}
	n := 0
	for other := range b.of {
		if namespaceOf(other) == namespaceOf(k) {
			n++
		}
	}
	if n < most {
		return nil
	}
	return addressError{"QuotaExceeded", fmt.Sprintf("namespace %s has %d service addresses, and may have %d: delete a "+
		"service, or have an administrator raise addressRules.perNamespace", namespaceOf(k), n, most)}
}

func namespaceOf(k v1alpha1.Key) string {
	namespace, _ := k.Split()
	return namespace
}

func hash(k v1alpha1.Key) uint64 {
	h := fnv.New64a()
	h.Write([]byte(k))
	// The low bits of FNV are unevenly distributed for short keys that differ at their end only.
	v := h.Sum64()
	return v ^ v>>32
}

// take gives a service a free address. Its former one is left.
func (b *book) take(k v1alpha1.Key, a netip.Addr) netip.Addr {
	if old, has := b.of[k]; has && old != a {
		b.release(k)
	}
	b.held[a], b.of[k] = k, a
	if _, was := b.left[a]; was {
		delete(b.left, a)
		b.tell()
	}
	return a
}

// maxLeft bounds the remembered addresses of deleted services.
const maxLeft = 100_000

// release frees the address of a service, and reports whether it had one.
func (b *book) release(k v1alpha1.Key) bool {
	a, has := b.of[k]
	if !has {
		return false
	}
	delete(b.of, k)
	delete(b.held, a)
	if len(b.left) >= maxLeft {
		b.forgetLeft()
	}
	b.left[a] = formerly{k, b.now()}
	b.tell()
	return true
}

// forgetLeft drops the addresses whose quarantine is over; all, if that makes no room.
func (b *book) forgetLeft() {
	for a, l := range b.left {
		if !b.quarantines(l) {
			delete(b.left, a)
		}
	}
	if len(b.left) >= maxLeft {
		clear(b.left)
	}
}

// tell says that left has changed.
func (b *book) tell() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}
