// SPDX-License-Identifier: Apache-2.0

package flood

// join puts requests of several kinds together.
func join(all ...Requests) (sum Requests) {
	for _, r := range all {
		sum.Times = append(sum.Times, r.Times...)
		sum.Failed += r.Failed
		sum.Errors = append(sum.Errors, r.Errors...)
	}
	return sum
}

// kinds are all kinds of requests, in the order of the report.
func kinds(s Samples) []kind {
	all := ownKinds(s)
	for _, p := range s.Peers {
		all = append(all, kind{p.Name + ": calm", p.Calm}, kind{p.Name + ": flood", p.Flood.Near})
	}
	return all
}

// ownKinds are the kinds of requests on the experiment's own instance.
func ownKinds(s Samples) []kind {
	return []kind{
		{"calm: near", s.Calm.Near}, {"calm: distant", s.Calm.Far}, {"calm: other service", s.Calm.Other},
		{"calm, many cold: near", s.CalmMany.Near}, {"calm, many cold: distant", s.CalmMany.Far},
		{"warm: near", s.Warm.Near}, {"warm: distant", s.Warm.Far}, {"warm: other service", s.Warm.Other},
		{"one cold: near", s.One.Near}, {"one cold: other service", s.One.Other},
		{"many cold: near", s.Many.Near}, {"many cold: distant", s.Many.Far}, {"many cold: other service", s.Many.Other},
		{"vanished: near", s.Vanish.Near}, {"vanished: distant", s.Vanish.Far}, {"vanished: other service", s.Vanish.Other},
	}
}

type kind struct {
	name string
	r    Requests
}
