// SPDX-License-Identifier: Apache-2.0

// Package view presents an instance to users: as a table of services, and as a live view on a terminal.
package view

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

// Services writes the table of services, one line each, and one for each manifest with mistakes; below it, a line for
// each pressure of the gate, and one that says since when wakes are known if an earlier controller led. It has a column
// for requests per second if a service balances them. wakes are the most recent wakes, oldest first. The age of the
// last request is relative to now.
func Services(w io.Writer, services []status.Status, broken []httpapi.BrokenFile, pressure []status.Pressure,
	wakes []lifecycle.Waterfall, now time.Time) error {
	last := make(map[string]lifecycle.Waterfall, len(wakes))
	for _, f := range wakes {
		last[f.Service] = f
	}
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	var since time.Time
	requests := slices.ContainsFunc(services, func(s status.Status) bool { return s.Service.Spec.BalancesRequests() })
	head, none := "", ""
	if requests {
		head, none = "REQ/S\t", "-\t"
	}
	fmt.Fprintf(t, "SERVICE\tADDRESS\tSTATE\tREPLICAS\tLAST REQUEST\tFLOWS\t%sWAKES\tLAST WAKE\tMESSAGE\n", head)
	for _, s := range services {
		status := &s.Service.Status
		name := s.Service.Namespace + "/" + s.Service.Name
		f, woken := last[name]
		since = cmp.Or(s.HistorySince, since)
		rate := none
		if spec := &s.Service.Spec; spec.BalancesRequests() && !spec.SplitsTraffic() {
			rate = fmt.Sprintf("%.1f\t", s.Traffic.RequestsPerSecond)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s%s\t%s\t%s\n",
			name, Address(s), State(s), status.Replicas, lastUse(s, now),
			s.Traffic.OpenFlows, rate, wakeCount(f, woken), wakeTime(f, woken), cmp.Or(oneLine(Message(s)), "-"))
	}
	for _, b := range broken {
		fmt.Fprintf(t, "%s\t-\tInvalid\t-\t-\t-\t%s-\t-\t%s\n", b.File, none, mistakes(b))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !since.IsZero() {
		if _, err := fmt.Fprintf(w, "Wakes are counted since %s, when this controller began to lead.\n",
			clock(since, now)); err != nil {
			return err
		}
	}
	for _, p := range pressure {
		if _, err := fmt.Fprintf(w, "%s: %s\n", p.Reason, p.Message); err != nil {
			return err
		}
	}
	return nil
}

// mistakes returns the first mistake of a file, without the file's name, and the number of the others.
func mistakes(b httpapi.BrokenFile) string {
	if len(b.Errors) == 0 {
		return "-"
	}
	first := strings.TrimLeft(oneLine(strings.TrimPrefix(b.Errors[0], b.File)), ": ")
	if more := len(b.Errors) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more)", first, more)
	}
	return first
}

// oneLine returns a text without line breaks and tabs, which would break the table. Texts of others may contain them.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Address returns the service address with its ports: 10.46.100.5:80, or 10.46.100.5:80,443.
func Address(s status.Status) string {
	var ports []string
	for _, p := range s.Service.Spec.PortList() {
		ports = append(ports, strconv.Itoa(int(p.Number)))
	}
	return net.JoinHostPort(s.Service.Status.LoadBalancerIP, strings.Join(ports, ","))
}

// wakeCount returns the number of wakes.
func wakeCount(f lifecycle.Waterfall, woken bool) string {
	if !woken || f.Number == 0 { // an earlier controller has counted it
		return "-"
	}
	return strconv.FormatUint(f.Number, 10)
}

// wakeTime returns the time from the first SYN to the release of the last parked one, or the result of the wake.
func wakeTime(f lifecycle.Waterfall, woken bool) string {
	if !woken {
		return "-"
	}
	released, ok := f.At(lifecycle.PhaseReleased)
	if !ok {
		return string(f.Result)
	}
	return fmt.Sprintf("%.1f ms", float64(released.Microseconds())/1000)
}

// lastUse returns the age of a service's last packet, or since when there was none.
func lastUse(s status.Status, now time.Time) string {
	if last := latest(s); !last.IsZero() || s.HistorySince.IsZero() {
		return ago(last, now)
	}
	return "not since " + clock(s.HistorySince, now)
}

// clock returns the time of day of t in the time zone of now, with its date unless that is today.
func clock(t, now time.Time) string {
	t = t.In(now.Location())
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// ago returns the age of t in the largest unit.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/(24*time.Hour))
	}
}

// latest returns the time of the service's last packet, zero if there was none.
func latest(s status.Status) time.Time {
	if t := s.Service.Status.LatestRequest; t != nil {
		return t.Time
	}
	return time.Time{}
}
