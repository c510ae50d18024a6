// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"testing"
	"time"
)

// TestManyPeersTakeTurnsForTheWholeTable has more daemons than may receive the whole table at once, among them some
// that leave while others wait. Each place must be given back.
func TestManyPeersTakeTurnsForTheWholeTable(t *testing.T) {
	noLeak(t)
	// 192 daemons on a machine that other tests use too would do nothing but keep their sessions.
	seldom := func(c *ClientConfig) { c.Keepalive = 3 * time.Second }
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = 3 * time.Second })
	const services = 500
	if err := ctl.SetServices(manyServices(services)); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		var all []*daemon
		for i := range 3 * maxWholeTables {
			all = append(all, startDaemon(t, ctl.addr, fmt.Sprintf("node-%d-%d", round, i), seldom))
		}
		for i, d := range all {
			if i%5 == 0 {
				d.Close()
				continue
			}
			eventually(t, fmt.Sprintf("daemon %d has the table", i), func() bool {
				_, _, _, _, n := d.state()
				return n == services
			})
		}
		for _, d := range all {
			d.Close()
		}
	}
	eventually(t, "all places are free", func() bool { return len(ctl.admission) == 0 })
}
