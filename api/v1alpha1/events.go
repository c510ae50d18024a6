// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// EventReason says in one word why there is an Event, for programs that match it. The empty reason stands for a message
// that is logged and shown, and makes no Event.
type EventReason string

// The reasons of Events.
const (
	// EventAddressAssigned: the service got an address, or a different one.
	EventAddressAssigned EventReason = "AddressAssigned"
	// EventWoke: the service became warm.
	EventWoke EventReason = "Woke"
	// EventSlept: the service became cold.
	EventSlept EventReason = "Slept"
	// EventScaled: the number of wanted pods changed while the service was awake.
	EventScaled EventReason = "Scaled"
	// EventWakeFailed: a wake failed, and waiting clients were refused.
	EventWakeFailed EventReason = "WakeFailed"
	// EventNodeLost: a pod that writes a volume is on a node that does not answer.
	EventNodeLost EventReason = "NodeLost"
	// EventDenied: a client may not connect because of its address.
	EventDenied EventReason = "Denied"
	// EventWakesLimited: clients exceed a budget of wakes.
	EventWakesLimited EventReason = "WakesLimited"
	// EventTableAlmostFull: a table of a node's gate is almost full.
	EventTableAlmostFull EventReason = "TableAlmostFull"
	// EventImageNotReady: no node has the service's images, and they cannot be pulled.
	EventImageNotReady EventReason = "ImageNotReady"
	// EventVolumesNotKept: the image declares volumes that are lost with each pod.
	EventVolumesNotKept EventReason = "VolumesNotKept"
	// EventProblem: anything else worth a warning.
	EventProblem EventReason = "Problem"
)

// EventDescription is what all Events with one reason have in common.
// +kubebuilder:object:generate=false
type EventDescription struct {
	// Warning is set if the type of the Event is Warning, and not Normal.
	Warning bool
	// Action is what was done or tried: the action of an Event of events.k8s.io/v1.
	Action string
}

// EventReasons has the reasons of all Events of services and nodes.
var EventReasons = map[EventReason]EventDescription{
	EventAddressAssigned: {false, "AssignAddress"},
	EventWoke:            {false, "Wake"},
	EventSlept:           {false, "Sleep"},
	EventScaled:          {false, "Scale"},
	EventWakeFailed:      {true, "Wake"},
	EventNodeLost:        {true, "Wait"},
	EventDenied:          {true, "Connect"},
	EventWakesLimited:    {true, "Connect"},
	EventTableAlmostFull: {true, "Connect"},
	EventImageNotReady:   {true, "Pull"},
	EventVolumesNotKept:  {true, "Mount"},
	EventProblem:         {true, "Run"},
}
