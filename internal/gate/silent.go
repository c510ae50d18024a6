// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// DefaultSYNTimeout is how long a pod may take to answer a SYN before another gets it, if Config.SYNTimeout is zero.
// A client's TCP sends a SYN again after one second (RFC 6298).
const DefaultSYNTimeout = 200 * time.Millisecond

// maxSilent is how many SYNs are sent on at a time: what a flood at a pod that does not answer may cost. The others
// wait for the next time.
const maxSilent = 256

// silence looks for SYNs that their pods do not answer. It reads the half-open rings, which the programs fill, from
// their oldest unanswered place on.
type silence struct {
	next  [ringShards]uint64 // first place of each ring that is not done with
	until [ringShards]uint64 // the first that may still be being written
	sent  int                // SYNs sent on in this round
	wake  chan struct{}      // there are half-open flows again
}

// watchSYNs sends on the SYNs that are not answered in time, until done is closed. It works only while there are
// half-open flows whose SYNs may yet be sent on.
func (g *Gate) watchSYNs(done <-chan struct{}) {
	if g.cfg.SYNTimeout < 0 {
		return
	}
	tick := time.NewTicker(g.cfg.SYNTimeout / 4)
	defer tick.Stop()
	for {
		for g.sendSilent(monotime.Now()) {
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
		select {
		case <-done:
			return
		case <-g.silence.wake:
			tick.Reset(g.cfg.SYNTimeout / 4)
		}
	}
}

// sendSilent sends each SYN on whose pod has not answered in time. It tells whether there are others to wait for;
// when not, the next SYN wakes watchSYNs.
func (g *Gate) sendSilent(now monotime.Time) bool {
	if g.scanRings(now) {
		return true
	}
	on := &g.watch.at(0).On
	atomic.StoreUint32(on, 0)
	// One that came just before that woke nobody.
	if !g.ringsMoved() {
		return false
	}
	atomic.StoreUint32(on, 1)
	return true
}

func (g *Gate) ringsMoved() bool {
	for shard := range uint32(ringShards) {
		if atomic.LoadUint64(g.heads.at(shard)) != g.silence.next[shard] {
			return true
		}
	}
	return false
}

// scanRings goes on through all rings, up to what is too young. It tells whether something was left.
func (g *Gate) scanRings(now monotime.Time) bool {
	s, size := &g.silence, uint64(g.cfg.Sizes.Ring)
	left := false
	s.sent = 0
	for shard := range uint32(ringShards) {
		head := atomic.LoadUint64(g.heads.at(shard))
		if head-s.next[shard] > size { // others have the places by now
			s.next[shard] = head - size
		}
		// A place that was taken before the last round is written.
		for s.next[shard] < s.until[shard] && g.scanPlace(shard, s.next[shard], now) {
			s.next[shard]++
		}
		s.until[shard] = head
		left = left || s.next[shard] != head
	}
	return left
}

// scanPlace looks at one place of a ring; false if its SYN may still be answered in time.
func (g *Gate) scanPlace(shard uint32, place uint64, now monotime.Time) bool {
	at := shard*g.cfg.Sizes.Ring + uint32(place)&(g.cfg.Sizes.Ring-1)
	k, stamp := g.kepts.at(at), uint32(place)<<1+1
	if atomic.LoadUint32(&k.Stamp) != stamp {
		return true // it was answered, or is gone
	}
	if now.Sub(monotime.Time(k.Sent)) < g.cfg.SYNTimeout || g.silence.sent == maxSilent {
		return false
	}
	frame := g.synFrame(*k, g.rings.at(at).Flow)
	if frame == nil || atomic.LoadUint32(&k.Stamp) != stamp {
		return true
	}
	g.silence.sent++
	if err := g.inject.send(g.inject.outer, frame); err != nil {
		g.log.Warn("a SYN that is not answered cannot be given to another pod", "error", err)
	}
	return true
}

// synFrame is the SYN that was kept of a flow, as gate_released takes it.
func (g *Gate) synFrame(k gateKept, flow gateFlowKey) []byte {
	n := int(k.OptionsLen)
	if n > len(k.Options) || n%4 != 0 {
		return nil
	}
	client, service := fromAddr(flow.Client), fromAddr(flow.Service)
	if !client.Is4() || !service.Is4() {
		return nil
	}
	f := make([]byte, ethernetHeader+40+n)
	copy(f, g.dev.innerMAC)
	f[12] = 0x08
	ip := f[ethernetHeader:]
	ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, k.Tos, 0x40, k.Ttl, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+n))
	copy(ip[12:], client.AsSlice())
	copy(ip[16:], service.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^fold16(sum16(0, ip[:20])))
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, ntohs(flow.ClientPort))
	binary.BigEndian.PutUint16(tcp[2:], ntohs(flow.ServicePort))
	binary.BigEndian.PutUint32(tcp[4:], k.Isn)
	tcp[12], tcp[13] = byte(5+n/4)<<4, k.Flags
	binary.NativeEndian.PutUint16(tcp[14:], k.Window)
	copy(tcp[20:], k.Options[:n])
	setTCPSum(ip)
	return f
}
