// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// lateness tells what a wake that missed its deadline had come to, with the pod for which it waited; nil if there was none.
func (t *turn) lateness(p *pod) string {
	after := t.spec.WakeTimeout
	switch {
	case p == nil && t.lastErr != nil:
		return fmt.Sprintf("no pod after %s: %v", after, t.lastErr)
	case p == nil:
		return fmt.Sprintf("the pod before it does not end: waited %s", after+t.spec.Grace)
	case p.listened:
		return fmt.Sprintf("the pod found running does not listen on port %d: waited %s", t.spec.Port, after)
	case p.started || p.phases[phaseIndex(PhaseStarted)] != 0:
		return fmt.Sprintf("process runs but nothing listens on port %d after %s: check spec.targetPort, and that the process does not listen on 127.0.0.1 only", t.spec.Port, after)
	}
	switch lastOf(p.phases) {
	case PhaseSandbox:
		return fmt.Sprintf("no process after %s: the network is ready, the container is not created", after)
	case PhaseCreated:
		return fmt.Sprintf("no process after %s: the container is created, its process does not start", after)
	case PhaseImage:
		return fmt.Sprintf("no process after %s: the image is there, the pod's network is not", after)
	default:
		return fmt.Sprintf("no process after %s: the image is still being fetched, or too many pods start at once", after)
	}
}

// exitReason tells how a process ended.
func exitReason(e PodExited) string {
	s := fmt.Sprintf("process exited with code %d", e.Code)
	if e.Code > 128 && e.Code <= 128+64 {
		s = fmt.Sprintf("process was ended by signal %d", e.Code-128)
	}
	if tail := strings.TrimSpace(e.LogTail); tail != "" {
		s += ": " + tail
	}
	return s
}

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

// roundUp rounds up to whole seconds, so that waiting that long is long enough.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
