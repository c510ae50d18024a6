// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// EventReason says in one word why there is an Event, for programs that match it. The empty reason stands for a message
// that is logged and shown, and makes no Event.
type EventReason string

// The reasons of Events. EventReasons describes each of them.
const (
	EventAddressAssigned EventReason = "AddressAssigned"
	EventWoke            EventReason = "Woke"
	EventSlept           EventReason = "Slept"
	EventScaled          EventReason = "Scaled"
	EventWakeFailed      EventReason = "WakeFailed"
	EventNodeLost        EventReason = "NodeLost"
	EventDenied          EventReason = "Denied"
	EventWakesLimited    EventReason = "WakesLimited"
	EventTableAlmostFull EventReason = "TableAlmostFull"
	EventImageNotReady   EventReason = "ImageNotReady"
	EventProblem         EventReason = "Problem"
)

// EventDescription describes the Events with one reason.
// +kubebuilder:object:generate=false
type EventDescription struct {
	// Warning is set if the type of the Event is Warning, and not Normal.
	Warning bool
	// Action is what was done or tried: the action of an Event of events.k8s.io/v1.
	Action string
	// When says when there is such an Event.
	When string
}

// EventReasons describes the reasons of all Events of services and nodes.
var EventReasons = map[EventReason]EventDescription{
	EventAddressAssigned: {false, "AssignAddress", "the service got an address, or a different one"},
	EventWoke:            {false, "Wake", "the service became warm"},
	EventSlept:           {false, "Sleep", "the service became cold"},
	EventScaled:          {false, "Scale", "the number of wanted pods changed while the service was awake"},
	EventWakeFailed:      {true, "Wake", "a wake failed, and waiting clients were refused"},
	EventNodeLost:        {true, "Wait", "a pod that writes a volume is on a node that does not answer"},
	EventDenied:          {true, "Connect", "a client may not connect because of its address"},
	EventWakesLimited:    {true, "Connect", "clients exceed a budget of wakes"},
	EventTableAlmostFull: {true, "Connect", "a table of a node's gate is almost full"},
	EventImageNotReady:   {true, "Pull", "no node has the service's images, and they cannot be pulled"},
	EventProblem:         {true, "Run", "anything else worth a warning"},
}
