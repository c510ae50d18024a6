// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// timeoutReason describes how far a wake that missed its deadline has come, with the pod for which it waited; nil for
// none.
func (m *Machine) timeoutReason(p *pod) string {
	after, port := m.spec.WakeTimeout, m.spec.Port
	where := ""
	if p != nil {
		where = p.sockets.elsewhere(port)
	}
	switch {
	case p == nil && m.start.lastErr != nil:
		return fmt.Sprintf("no pod after %s: %v", after, m.start.lastErr)
	case p == nil:
		return m.predecessorStays(after + m.spec.Grace)
	case p.is(podProbed):
		return fmt.Sprintf("the pod listens on port %d, but its readinessProbe did not succeed within %s: %s", port, after,
			p.lastAnswer())
	case p.is(podDeaf) && where != "":
		return fmt.Sprintf("the pod no longer listens on port %d: it %s: waited %s", port, where, after)
	case p.is(podDeaf):
		return fmt.Sprintf("the pod no longer listens on port %d: waited %s", port, after)
	case p.progress >= podListened && where != "":
		return fmt.Sprintf("the pod found running %s: waited %s: %s", where, after, p.sockets.remedy(port))
	case p.progress >= podListened:
		return fmt.Sprintf("the pod found running does not listen on port %d: waited %s", port, after)
	case where != "":
		return fmt.Sprintf("process runs but %s: waited %s: %s", where, after, p.sockets.remedy(port))
	case p.runs() && p.sockets.seen:
		return fmt.Sprintf("process runs but nothing listens on port %d after %s: it listens on no TCP port", port, after)
	case p.runs():
		return fmt.Sprintf("process runs but nothing listens on port %d for IPv4 after %s: check spec.targetPort, and that "+
			"the process listens on 0.0.0.0 or [::], not on 127.0.0.1 or for IPv6 only", port, after)
	}
	why := "its start has not come to its network"
	switch lastOf(p.phases) {
	case PhaseSandbox:
		why = "the network is ready, the container is not created"
	case PhaseCreated:
		why = "the container is created, its process does not start"
	case PhaseImage:
		why = "the image is there, the pod's network is not"
	}
	if p.waits != "" {
		why = p.waits
	}
	return fmt.Sprintf("no process after %s: %s", after, why)
}

// updateTimeoutReason is timeoutReason for a pod that replaces one of an older spec.
func (m *Machine) updateTimeoutReason(p *pod) string {
	if p.is(podProbed) {
		return fmt.Sprintf("its readinessProbe did not succeed within %s: %s", m.spec.WakeTimeout, p.lastAnswer())
	}
	if p.progress < podRunning && p.waits != "" {
		return p.waits
	}
	if p.progress < podRunning {
		return "its process was not started in time"
	}
	if where := p.sockets.elsewhere(m.spec.Port); where != "" {
		return fmt.Sprintf("it %s: waited %s", where, m.spec.WakeTimeout)
	}
	return fmt.Sprintf("nothing listens on port %d after %s", m.spec.Port, m.spec.WakeTimeout)
}

// predecessorStays is the reason of a wake that could not start a pod because the previous one is still there.
func (m *Machine) predecessorStays(waited time.Duration) string {
	if m.spec.Volume == "" {
		return fmt.Sprintf("the previous pod does not end: waited %s", waited)
	}
	return fmt.Sprintf("the previous pod does not end, and may still write volume %q: waited %s", m.spec.Volume, waited)
}

// Reason describes how a process ended.
func (e Exited) Reason() string {
	s := fmt.Sprintf("process exited with code %d", e.Code)
	if e.Code > 128 && e.Code <= 128+64 {
		s = fmt.Sprintf("process was ended by signal %d", e.Code-128)
	}
	if detail := strings.TrimSpace(e.Detail); detail != "" {
		s += ": " + detail
	}
	return s
}

// inForeground is what to do about a program that ends without an error before it listens.
const inForeground = "it ended before it listened: a program that goes on in the background must stay in the " +
	"foreground (nginx -g 'daemon off;', for example)"

// exitReason is the reason of an exit, with what to do about it.
func (m *Machine) exitReason(e Exited) string {
	if p := m.pod(e.Ref); p == nil || !p.starting() || e.Code != 0 {
		return e.Reason()
	}
	if e.Detail == "" {
		e.Detail = inForeground
	} else {
		e.Detail = inForeground + "; " + e.Detail
	}
	return e.Reason()
}

// scaledTo is the reason for starting or stopping pods that no client has asked for.
func scaledTo(n int, why string) string {
	if why == "" {
		return fmt.Sprintf("scaled to %d", n)
	}
	return fmt.Sprintf("scaled to %d: %s", n, why)
}

// counted writes a number with its noun, "1 pod" or "2 pods".
func counted(n uint32, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ms writes a duration in milliseconds with three decimals.
func ms(d time.Duration) string {
	return fmt.Sprintf("%.3f ms", float64(d.Microseconds())/1000)
}

// roundUp rounds up to whole seconds, so that a client that waits so long waits long enough.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
