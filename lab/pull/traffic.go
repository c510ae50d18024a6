// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/test/testutil/netlab"
)

// traffic counts what the device of a host has received or sent, including packet headers.
type traffic struct {
	host *netlab.Namespace
	sent bool
	seen []seenAt
}

// seenAt is the device's counter at a time after the beginning.
type seenAt struct {
	since time.Duration
	bytes uint64
}

// look records the counters of devices at a time after the beginning.
func look(links []*traffic, since time.Duration) error {
	for _, l := range links {
		err := l.host.Do(func() error {
			device, err := netlink.LinkByName(netlab.Device)
			if err != nil {
				return err
			}
			bytes := device.Attrs().Statistics.RxBytes
			if l.sent {
				bytes = device.Attrs().Statistics.TxBytes
			}
			l.seen = append(l.seen, seenAt{since, bytes})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// total returns the bytes between the first look and the last.
func (t *traffic) total() uint64 { return t.seen[len(t.seen)-1].bytes - t.seen[0].bytes }

// done returns when 99 % of them were counted, in seconds.
func (t *traffic) done() (seconds float64) {
	for _, at := range slices.Backward(t.seen) {
		if float64(at.bytes-t.seen[0].bytes) < 0.99*float64(t.total()) {
			break
		}
		seconds = at.since.Seconds()
	}
	return seconds
}
