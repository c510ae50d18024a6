// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"slices"
	"strconv"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
	"wangell.loutres.me/lab/proxy"
)

// AllModes are the compared modes.
var AllModes = []string{proxy.ModeIptables, proxy.ModeNftables, proxy.ModeWangell}

// Samples are the samples of all parts.
type Samples struct {
	Fixed       []FixedSample     `json:"fixed,omitempty"`
	Rates       []RateSample      `json:"rates,omitempty"`
	Replicas    []ReplicaSample   `json:"replicas,omitempty"`
	Alternating []AlternatingMode `json:"alternating,omitempty"`
	Flap        []FlapSample      `json:"flap,omitempty"`
}

// FixedSample is a run of ab against a fixed number of pods.
type FixedSample struct {
	Mode       string `json:"mode"`
	Repetition int    `json:"repetition"`
	load.Result
}

// RateSample is the sum of all turns of a mode in one repetition, by several clients at the same time.
type RateSample struct {
	rateKey
	Repetition int `json:"repetition"`
	load.Result
}

// rateKey is what a rate belongs to.
type rateKey struct {
	Mode      string `json:"mode"`
	Clients   string `json:"clients"` // a vantage
	KeepAlive bool   `json:"keep_alive"`
}

// rateClients are the places of clients of PartRates.
var rateClients = []string{cluster.VantagePods, cluster.VantageLAN}

// ReplicaSample is a run of ab against a number of pods.
type ReplicaSample struct {
	Mode string `json:"mode"`
	// Replicas is the number of pods; 0 is autoscaled, 1 to 3.
	Replicas   int `json:"replicas"`
	Repetition int `json:"repetition"`
	load.Result
}

// replicasText returns a number of pods for people.
func replicasText(replicas int) string {
	if replicas == 0 {
		return "1-3"
	}
	return strconv.Itoa(replicas)
}

// AlternatingMode is a mode under alternating load, autoscaled.
type AlternatingMode struct {
	Mode  string           `json:"mode"`
	Runs  []AlternatingRun `json:"runs"`
	Steps []Step           `json:"steps"`
}

// aborted counts the runs that broke off.
func (m AlternatingMode) aborted() (n int) {
	for _, r := range m.Runs {
		if r.Aborted != "" {
			n++
		}
	}
	return n
}

// swings counts how often the number of wanted pods fell from 3 to 1 and rose from 1 to 3, directly or in steps.
func (m AlternatingMode) swings() (falls, rises int) {
	last := 0 // the last of 1 and 3
	for _, s := range m.Steps {
		switch {
		case s.Wanted == 1 && last == 3:
			falls++
		case s.Wanted == 3 && last == 1:
			rises++
		}
		if s.Wanted == 1 || s.Wanted == 3 {
			last = s.Wanted
		}
	}
	return falls, rises
}

// AlternatingRun is one of its runs of ab.
type AlternatingRun struct {
	// At is the begin, End the end, in seconds since the begin of the first run.
	At          float64 `json:"at_s"`
	End         float64 `json:"end_s"`
	Concurrency int     `json:"concurrency"`
	load.Result
}

// Step is the state of an autoscaled service at a moment.
type Step struct {
	// At is in seconds since the begin.
	At float64 `json:"at_s"`
	// Wanted is the number of pods that the autoscaler has set, Ready the number that serve, Others the number that start
	// or end.
	Wanted int `json:"wanted"`
	Ready  int `json:"ready"`
	Others int `json:"others"`
	// CPU is the mean use of a core per pod since the autoscaler's last decision. Only decisions have it.
	CPU *float64 `json:"cpu,omitempty"`
	// Why is the autoscaler's reason. Only decisions have it.
	Why string `json:"why,omitempty"`
}

// Disturbances of PartFlap.
const (
	// DisturbScale is `kubectl scale` between 1 and 3 pods.
	DisturbScale = "scale"
	// DisturbRollout is `kubectl rollout restart`, repeated.
	DisturbRollout = "rollout"
	// DisturbDelete is `kubectl delete pod` of the oldest pod, repeated.
	DisturbDelete = "delete"
)

// FlapCase is a disturbance under a load.
type FlapCase struct {
	// Disturb is what is done to the pods.
	Disturb string `json:"disturb"`
	// KeepAlive uses wrk with persistent connections instead of ab with a connection per request.
	KeepAlive bool `json:"keep_alive"`
	// Key is the name in summaries and flags.
	Key string `json:"case"`
	// Stop is what the load server does at SIGTERM: "now", it exits; "refuse", it stops listening and finishes what is
	// open.
	Stop string `json:"stop"`
}

// String names the case for people.
func (c FlapCase) String() string {
	tool := "ab"
	if c.KeepAlive {
		tool = "wrk"
	}
	return c.Disturb + ", " + tool + ", server ends: " + c.Stop
}

// FlapCases are all cases. A server that exits at once cuts off what it has not answered when a rollout or a user
// deletes it, which no balancing can prevent. So this server is measured only while it is scaled.
var FlapCases = []FlapCase{
	{DisturbScale, false, "scale_ab", cluster.StopNow},
	{DisturbScale, false, "scale_refuse_ab", cluster.StopRefuse},
	{DisturbScale, true, "scale_wrk", cluster.StopRefuse},
	{DisturbRollout, false, "rollout_ab", cluster.StopRefuse},
	{DisturbRollout, true, "rollout_wrk", cluster.StopRefuse},
	{DisturbDelete, false, "delete_ab", cluster.StopRefuse},
	{DisturbDelete, true, "delete_wrk", cluster.StopRefuse},
}

// FlapCaseKeys returns the keys of FlapCases.
func FlapCaseKeys() (keys []string) {
	for _, c := range FlapCases {
		keys = append(keys, c.Key)
	}
	return keys
}

// FlapSample is the load's outcome of a case.
type FlapSample struct {
	Mode string `json:"mode"`
	FlapCase
	// Disturbed counts the disturbances.
	Disturbed int `json:"disturbed"`
	// Runs counts the runs of the load generator; Aborts are the reasons of those that broke off.
	Runs   int      `json:"runs"`
	Aborts []string `json:"aborts,omitempty"`
	load.Result
}

// withDirect adds the limit to modes.
func withDirect(modes []string) []string { return append(slices.Clone(modes), proxy.ModeDirect) }
