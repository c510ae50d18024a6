// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
)

// denials are the connection requests to a service that gates have dropped because of their source.
type denials struct {
	byNode map[string]uint64
	source netip.Addr // of the last one that was reported
}

func (d *denials) total() (n uint64) {
	for _, of := range d.byNode {
		n += of
	}
	return n
}

// note records the number of requests that a node's gate has dropped, and the source of the last one.
func (d *denials) note(node string, total uint64, source netip.Addr) {
	if d.byNode == nil {
		d.byNode = map[string]uint64{}
	}
	d.byNode[node], d.source = total, source
}

// message says what was denied; empty if nothing was.
func (d *denials) message() string {
	if !d.source.IsValid() {
		return ""
	}
	return fmt.Sprintf("%d connection requests denied, one of them from %s, which may not connect", d.total(), d.source)
}
