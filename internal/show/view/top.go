// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// Sample is the status of all services at a time.
type Sample struct {
	At       time.Time
	Services []status.Status
}

// Load is the load of a service or a pod between two samples.
type Load struct {
	// Name is namespace/name of a service, or the ID of a pod.
	Name  string `json:"name"`
	State string `json:"state"`
	// Open is the number of open connections at the second sample, NewPerSecond the mean rate of new ones.
	Open         uint32  `json:"open"`
	NewPerSecond float64 `json:"newPerSecond"`
	// InPerSecond and OutPerSecond are IP bytes from clients and to them.
	InPerSecond  float64 `json:"inPerSecond"`
	OutPerSecond float64 `json:"outPerSecond"`
	// Requests is set if requests are balanced: their rate per second, and the number not answered yet.
	Requests *RequestLoad `json:"requests,omitempty"`
}

// RequestLoad is the load of requests.
type RequestLoad struct {
	PerSecond float64 `json:"perSecond"`
	Open      uint32  `json:"open"`
}

// ServiceLoad is the load of a service and of each of its pods.
type ServiceLoad struct {
	Load
	Pods []Load `json:"pods,omitempty"`
	// BusiestByMean is the rate of the busiest serving pod divided by the mean of all, 1 if they are even; 0 without
	// any. The rate counts requests if they are balanced, otherwise new connections.
	BusiestByMean float64 `json:"busiestByMean,omitempty"`
}

// TopOrder is an order of services.
type TopOrder string

// The orders. By rate is by requests per second where they are balanced, and new connections elsewhere, most first.
const (
	TopByRate TopOrder = "rate"
	TopByOpen TopOrder = "open"
	TopByName TopOrder = "name"
)

// TopOrders returns all orders.
func TopOrders() []TopOrder { return []TopOrder{TopByRate, TopByOpen, TopByName} }

// Loads compares two samples. Counters that have fallen started from zero.
func Loads(before, after Sample, order TopOrder) []ServiceLoad {
	seconds := after.At.Sub(before.At).Seconds()
	services, pods := map[string]status.Traffic{}, map[string]status.Traffic{}
	for _, s := range before.Services {
		services[fullName(s)] = s.Traffic
		for _, p := range s.Pods {
			pods[p.ID] = p.Traffic
		}
	}
	var all []ServiceLoad
	for _, s := range after.Services {
		requests := s.Service.Spec.BalancesRequests()
		l := ServiceLoad{
			Load: load(fullName(s), s.Service.Status.State, services[fullName(s)], s.Traffic, seconds, requests),
		}
		for _, p := range s.Pods {
			if p.ID != "" {
				l.Pods = append(l.Pods, load(p.ID, p.State, pods[p.ID], p.Traffic, seconds, requests))
			}
		}
		l.BusiestByMean = busiestByMean(l.Pods)
		all = append(all, l)
	}
	slices.SortStableFunc(all, func(a, b ServiceLoad) int {
		switch order {
		case TopByRate:
			return cmp.Or(cmp.Compare(b.rate(), a.rate()), cmp.Compare(b.Open, a.Open), cmp.Compare(a.Name, b.Name))
		case TopByOpen:
			return cmp.Or(cmp.Compare(b.Open, a.Open), cmp.Compare(a.Name, b.Name))
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return all
}

func fullName(s status.Status) string { return s.Service.Namespace + "/" + s.Service.Name }

func load(name, state string, before, after status.Traffic, seconds float64, requests bool) Load {
	rate := func(before, after uint64) float64 {
		if seconds <= 0 {
			return 0
		}
		if after < before {
			before = 0
		}
		return float64(after-before) / seconds
	}
	l := Load{
		Name: name, State: state, Open: after.OpenFlows, NewPerSecond: rate(before.NewFlows, after.NewFlows),
		InPerSecond: rate(before.BytesIn, after.BytesIn), OutPerSecond: rate(before.BytesOut, after.BytesOut),
	}
	if requests {
		l.Requests = &RequestLoad{PerSecond: rate(before.Requests, after.Requests), Open: after.OpenRequests}
	}
	return l
}

// rate is the rate of requests if they are balanced, and of new connections otherwise.
func (l Load) rate() float64 {
	if l.Requests != nil {
		return l.Requests.PerSecond
	}
	return l.NewPerSecond
}

func busiestByMean(pods []Load) float64 {
	var sum, most float64
	n := 0
	for _, p := range pods {
		if p.State == lifecycle.PodServing.String() {
			sum, most, n = sum+p.rate(), max(most, p.rate()), n+1
		}
	}
	if sum == 0 {
		return 0
	}
	return most / (sum / float64(n))
}

// Top writes loads as a table: a line for each service, and below it one for each pod. It has a column for requests if
// a service balances them.
func Top(w io.Writer, loads []ServiceLoad) error {
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	requests := slices.ContainsFunc(loads, func(l ServiceLoad) bool { return l.Requests != nil })
	more := ""
	if requests {
		more = "REQ/S\t"
	}
	fmt.Fprintf(t, "SERVICE\tSTATE\tPODS\tOPEN\tNEW/S\t%sIN/S\tOUT/S\tBUSIEST/MEAN\n", more)
	for _, s := range loads {
		even := "-"
		if s.BusiestByMean > 0 {
			even = fmt.Sprintf("%.2f", s.BusiestByMean)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", s.Name, cmp.Or(s.State, "-"), len(s.Pods), s.columns(requests), even)
		for _, p := range s.Pods {
			fmt.Fprintf(t, "  %s\t%s\t\t%s\t\n", p.Name, p.State, p.columns(requests))
		}
	}
	return t.Flush()
}

// columns are the columns that services and pods share.
func (l Load) columns(requests bool) string {
	rates := fmt.Sprintf("%.1f", l.NewPerSecond)
	switch {
	case requests && l.Requests != nil:
		rates += fmt.Sprintf("\t%.1f", l.Requests.PerSecond)
	case requests:
		rates += "\t-"
	}
	return fmt.Sprintf("%d\t%s\t%s\t%s", l.Open, rates, bytesPerSecond(l.InPerSecond), bytesPerSecond(l.OutPerSecond))
}

// bytesPerSecond writes a rate with a decimal prefix.
func bytesPerSecond(v float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if v >= u.size {
			return fmt.Sprintf("%.1f %s", v/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", v)
}
