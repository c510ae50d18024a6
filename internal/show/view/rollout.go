// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

// Rollout is how the traffic of a service is split.
type Rollout struct {
	// Service is its namespace/name.
	Service   string           `json:"service"`
	Address   string           `json:"address,omitempty"`
	Sticky    *v1alpha1.Sticky `json:"sticky,omitempty"`
	Revisions []RevisionState  `json:"revisions"`
	Message   string           `json:"message,omitempty"`
}

// RevisionState is a revision of a service.
type RevisionState struct {
	// Name is the name of the revision's service, in the same namespace.
	Name    string `json:"name"`
	Percent int32  `json:"percent"`
	Tag     string `json:"tag,omitempty"`
	// State is the state of the service, or Missing if there is none.
	State    string `json:"state"`
	Replicas int32  `json:"replicas"`
	// RequestsPerSecond, Requests and FailedRequests count the requests that reached it in any way, the last two
	// since the controller started. Failed ones got no answer, or one with a status code of 500 or more.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
	Requests          uint64  `json:"requests"`
	FailedRequests    uint64  `json:"failedRequests"`
	Message           string  `json:"message,omitempty"`
}

// Missing is the state of a revision whose service does not exist.
const Missing = "Missing"

// RolloutOf returns how the traffic of a service is split. all has the services of its namespace.
func RolloutOf(s status.Status, all []status.Status) Rollout {
	of := &s.Service
	r := Rollout{
		Service: of.Namespace + "/" + of.Name, Sticky: of.Spec.Sticky, Message: of.Status.Message, Address: Address(s),
		Revisions: []RevisionState{},
	}
	for _, t := range of.Spec.Traffic {
		state := RevisionState{Name: t.Revision, Percent: t.Percent, Tag: t.Tag, State: Missing,
			Message: "there is no such service: the others get its requests"}
		i := slices.IndexFunc(all, func(o status.Status) bool {
			return o.Service.Namespace == of.Namespace && o.Service.Name == t.Revision
		})
		if i >= 0 {
			to := &all[i]
			state.State, state.Replicas = to.Service.Status.State, to.Service.Status.Replicas
			state.Requests, state.FailedRequests = to.Traffic.Requests, to.Traffic.FailedRequests
			state.RequestsPerSecond, state.Message = to.Traffic.RequestsPerSecond, to.Service.Status.Message
		}
		r.Revisions = append(r.Revisions, state)
	}
	return r
}

// WriteRollout writes a table of the revisions of a service.
func WriteRollout(w io.Writer, r Rollout) error {
	fmt.Fprintf(w, "%s at %s", r.Service, cmp.Or(r.Address, "no address yet"))
	switch {
	case r.Sticky == nil:
	case r.Sticky.Header != "":
		fmt.Fprintf(w, ", sticky by header %s", r.Sticky.Header)
	default:
		fmt.Fprintf(w, ", sticky by cookie %s", r.Sticky.Cookie)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(t, "REVISION\tPERCENT\tTAG\tSTATE\tREPLICAS\tREQ/S\tREQUESTS\tFAILED\tMESSAGE")
	for _, s := range r.Revisions {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%.1f\t%d\t%d\t%s\n", s.Name, s.Percent, cmp.Or(s.Tag, "-"), s.State, s.Replicas,
			s.RequestsPerSecond, s.Requests, s.FailedRequests, cmp.Or(s.Message, "-"))
	}
	if err := t.Flush(); err != nil || r.Message == "" {
		return err
	}
	_, err := fmt.Fprintln(w, r.Message)
	return err
}
