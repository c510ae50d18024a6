// SPDX-License-Identifier: Apache-2.0

package status

import (
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	EventReport EventKind = "report" // a message for users: Severity and Text
	EventState  EventKind = "state"  // a service has entered State
	EventPull   EventKind = "pull"   // an image is being fetched: Image, Done, Total
	EventImages EventKind = "images" // no node could get the images of a service ahead of need: Severity and Text
	EventDaemon EventKind = "daemon" // the daemon of Node has connected or disconnected: Text
	// EventPressure: something is scarce in the gate of Node: Reason and Text. Without a Service it concerns the node.
	EventPressure EventKind = "pressure"
)

// Severities of a report.
const (
	SeverityInfo    = "info"
	SeverityWarning = "warning"
	SeverityError   = "error"
)

// Event is something that happened.
type Event struct {
	Time     time.Time    `json:"time"`
	Kind     EventKind    `json:"kind"`
	Service  v1alpha1.Key `json:"service,omitempty"`
	Severity string       `json:"severity,omitempty"`
	Text     string       `json:"text,omitempty"`
	State    string       `json:"state,omitempty"`
	Image    string       `json:"image,omitempty"`
	// Done and Total are bytes of an image's layers; Total is 0 while it is not known.
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"`
	Node  string `json:"node,omitempty"`
	// Reason is the reason of the Event that it makes on Kubernetes, unless that follows from State; empty if it makes
	// none.
	Reason v1alpha1.EventReason `json:"reason,omitempty"`
	// Lost is the number of events before this one that the subscriber missed because it was too slow.
	Lost int `json:"lost,omitempty"`
}
