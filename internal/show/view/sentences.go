// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"time"

	"wangell.loutres.me/internal/status"
)

// why collects sentences about a service.
type why struct {
	status.Status
	now       time.Time
	sentences []string
}

func (w *why) say(format string, args ...any) {
	w.sentences = append(w.sentences, fmt.Sprintf(format, args...))
}

// idle is how long the service may go without a packet.
func (w *why) idle() time.Duration { return time.Duration(w.Service.Spec.IdleTimeout) * time.Second }

// counted writes a number of things.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// short writes a duration with two units at most.
func short(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return two(d, time.Minute, "min", time.Second, "s")
	case d < 48*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "min")
	}
	return two(d, 24*time.Hour, "d", time.Hour, "h")
}

// two writes a duration in a unit, and the rest in a smaller one unless it is zero.
func two(d, unit time.Duration, name string, smaller time.Duration, smallerName string) string {
	if rest := d % unit / smaller; rest > 0 {
		return fmt.Sprintf("%d %s %d %s", d/unit, name, rest, smallerName)
	}
	return fmt.Sprintf("%d %s", d/unit, name)
}
