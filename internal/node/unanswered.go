// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

const (
	// unansweredMost is how long a client may wait for an answer that keeps its service awake. Programs that are never
	// answered, such as senders of logs, keep it awake no longer than that.
	unansweredMost = 15 * time.Minute
	// unansweredAgain is the pause between two looks at the connections of a service that a client keeps awake.
	unansweredAgain = 2 * time.Second
)

// awaited reports whether a client waits for an answer of a silent service, which is in use then. A service that is
// frozen when it is silent does not count: its connections stay, and it thaws for what its program waits for. s.mu is
// held.
func (d *daemon) awaited(s *service, now monotime.Time) bool {
	switch {
	case s.freezeAfter > 0:
		return false
	case now < s.awaitedUntil:
		return true
	}
	for _, p := range s.pods {
		if !p.home || p.netns == "" || !s.serves(p.id) && !p.unready() {
			continue
		}
		waits, err := clientWaits(p.netns)
		if err != nil {
			// The pod may just have ended.
			d.log.Debug("cannot look for requests without an answer", "service", s.name, "pod", p.id, "error", err)
			continue
		}
		if waits {
			s.awaitedUntil = now.Add(unansweredAgain)
			return true
		}
	}
	return false
}

// clientWaits reports whether a server in a network namespace, given by its path, has not answered a client.
func clientWaits(netns string) (bool, error) {
	diag, err := openSockDiag(netns)
	if err != nil {
		return false, err
	}
	defer diag.close()
	all, err := diag.states()
	return err == nil && unanswered(all, unansweredMost), err
}

// unanswered reports whether a listening program has a connection on which the peer was the last to send data, within
// most. Connections of the pod to itself do not count: among them are those of its own workers.
func unanswered(all []socketState, most time.Duration) bool {
	serves := servedPorts(all)
	for _, t := range all {
		if t.state != tcpListen && serves[t.port] && t.asked() && t.receivedAgo < most && !isItself(t.peer) {
			return true
		}
	}
	return false
}

// isItself reports whether the peer of a socket is in the same pod.
func isItself(peer netip.Addr) bool { return peer.IsLoopback() }
