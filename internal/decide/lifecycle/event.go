// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
)

// State is the state of a service.
type State uint8

// The states of a service.
const (
	Cold     State = iota // no pod
	Waking                // no pod serves; one is starting, or will as soon as its predecessor is gone
	Warm                  // at least one pod serves
	Stopping              // all pods are being drained, then stopped
	Failed                // the last wake failed; no pod
	Frozen                // Warm, and all pods are frozen
)

var stateNames = [...]string{"Cold", "Waking", "Warm", "Stopping", "Failed", "Frozen"}

// String returns the state's name as it appears in a manifest's status.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "Unknown"
}

// States returns all states.
func States() []State { return []State{Cold, Waking, Warm, Frozen, Stopping, Failed} }

// PodState is the state of a pod as users and daemons see it. The first three direct what a daemon does with the pod,
// and have the values of wire.PodState.
type PodState uint8

// The states of a pod, in the order of its life.
const (
	PodStarting PodState = 1 // wait until it listens, then serve
	PodServing  PodState = 2 // it listens: give it flows
	PodDraining PodState = 3 // no new flows; open ones continue
	PodStopping PodState = 4 // StopPod was issued
	PodExited   PodState = 5 // its process has ended
)

var podStateNames = [...]string{"unknown", "starting", "serving", "draining", "stopping", "exited"}

// String returns the state's name as it appears in status and metrics.
func (s PodState) String() string {
	if int(s) < len(podStateNames) {
		return podStateNames[s]
	}
	return podStateNames[0]
}

// PodStates returns all states of a pod.
func PodStates() []PodState {
	return []PodState{PodStarting, PodServing, PodDraining, PodStopping, PodExited}
}

// Ref names a pod of a service. The machine numbers pods from 1 and never uses a number twice for a service.
type Ref uint64

// Event is one of the structs below.
type Event interface{ event() }

// WakeAsked reports that a daemon has parked SYNs of the service. Unknown times are zero.
type WakeAsked struct {
	Seq     uint64        // the daemon's count of its wake requests for this service
	SYNSeen monotime.Time // when the gate parked the first SYN
	Noticed monotime.Time // when the daemon's user space read the gate's event
	Parked  uint32        // SYNs parked so far
	Port    int           // at which port of the service they are, counted from 0
}

// PhaseEnded reports that the runtime has finished a step of starting a pod: PhaseImage, PhaseSandbox, PhaseCreated
// or PhaseStarted.
type PhaseEnded struct {
	Ref   Ref
	Phase PhaseName
	At    monotime.Time
}

// NetworkReady reports that the pod has a network and an address, so that daemons can watch for its socket.
type NetworkReady struct{ Ref Ref }

// Waits reports for what a start waits, such as an image, a volume or an init container.
type Waits struct {
	Ref Ref
	// For is for a message; empty if it waits for nothing of note.
	For string
}

// Started reports that StartPod has succeeded: the pod has a network, and its process runs.
type Started struct{ Ref Ref }

// StartFailed reports that StartPod has failed. Nothing of the pod remains, except when it was seen to listen or was
// stopped: then StopPod removes it. Retryable is set if the same call may work a moment later, because the runtime
// did not answer.
type StartFailed struct {
	Ref       Ref
	Err       error
	Retryable bool
}

// Listening reports that the pod's socket listens, as seen by the kernel of its home node, and that its readinessProbe
// has succeeded if readiness depends on it.
type Listening struct {
	Ref  Ref
	At   monotime.Time
	Port int // the port of the service that the socket is for, counted from 0
}

// Unready reports that the pod's socket listens, but that the pod is not ready: its readinessProbe has not succeeded
// yet, or fails after it served. Listening follows when it succeeds.
type Unready struct {
	Ref    Ref
	At     monotime.Time // when its socket began to listen; zero if it was ready before
	Answer string        // what the probe said last; empty if it has not run yet
	Failed bool          // its startupProbe has not succeeded in time: the pod is ended
}

// Sockets reports where a pod listens whose socket is not seen to listen where clients reach it.
type Sockets struct {
	Ref Ref
	// At has the TCP sockets that listen in the pod, with unspecified addresses for those of all interfaces; empty if
	// there are none.
	At []netip.AddrPort
}

// Deaf reports that a pod that served does not listen on a port any more. Its open connections continue, unless its
// process has ended: then Exited follows. Listening follows if it listens again.
type Deaf struct {
	Ref  Ref
	Port int // the port of the service, counted from 0
}

// Trace carries times of a wake that the gate has measured. Zero means not measured yet.
type Trace struct {
	Ref                              Ref
	Released, FirstSYNACK, FirstByte monotime.Time
	ReleasedN                        uint32 // parked SYNs released
}

// Exited reports that the pod's process has ended. StopPod removes what remains of the pod.
type Exited struct {
	Ref    Ref
	Code   uint32 // exit status; 128+n for signal n
	Detail string // why it ended, as far as known, and the end of the process's output
}

// Ended reports why a pod ended: others did it, such as the kubelet of a node that is short of memory, or its process
// crashed. It comes in place of Exited, or after it if the reason became known later.
type Ended struct {
	Ref     Ref
	Why     string
	Crashed bool
}

// IdleSeen reports that no node with a pod of the service has seen a packet for the idle timeout, or for FreezeAfter.
type IdleSeen struct {
	LastPacket monotime.Time
	// Of is the time of the last packet of each pod, by its own node's clock. LastPacket stands for missing pods.
	Of map[Ref]monotime.Time
	// Cores is the CPU usage of each pod since its last packet, in cores, as far as known.
	Cores map[Ref]float64
}

// FrozenSeen reports that a daemon has frozen or thawed a pod, or found it frozen, or could not freeze it.
type FrozenSeen struct {
	Ref    Ref
	Seq    uint64 // of the FreezePods that it answers; 0 if the pod was found frozen
	Frozen bool
	At     monotime.Time
	// LastPacket is the time of the pod's last packet, as far as known.
	LastPacket monotime.Time
	Reason     string // why it was not frozen; empty if a packet or a FreezePods thawed it
}

// Pressed asks to stop the service now if all its pods are frozen, because their node needs their resources.
type Pressed struct{ Why string }

// ThawAsked asks to thaw the pods of a service: a command needs its program.
type ThawAsked struct{}

// Quiet reports that no gate gives the pod new flows any more, now that all have the backends of Generation.
type Quiet struct {
	Ref        Ref
	Generation uint64
	LastPacket monotime.Time
	OpenFlows  uint32
}

// FlowsSeen reports the number of open flows of a pod, and its last packet.
type FlowsSeen struct {
	Ref        Ref
	Open       uint32
	LastPacket monotime.Time // zero if it had none
}

// StopDone reports that StopPod has succeeded and nothing of the pod remains.
type StopDone struct{ Ref Ref }

// SleepAsked is a user's request to put the service to sleep now.
type SleepAsked struct{}

// Scale asks for N pods, within the limits of the spec. Zero is the same as SleepAsked. Why is for users.
type Scale struct {
	N   int
	Why string
}

// SpecChanged reports a changed manifest. Restart is set if running pods have to be replaced.
type SpecChanged struct {
	Spec    Spec
	Restart bool
}

// RestartAsked is a user's request to replace all pods, as for a changed manifest. A runtime that replaces pods itself
// (Spec.Rolls) has its own way to do that.
type RestartAsked struct{}

// Deleted reports that the manifest was deleted. Drain is set for a revision, whose clients go on with the others: its
// pods lose no request. Without it, they are stopped at once, also if they are being drained after an earlier Deleted.
type Deleted struct{ Drain bool }

// Adopted reports a running pod that the machine did not start. Ref comes from Machine.NextRef. Leaving is set if the
// pod is being removed from outside already; Exited or StopDone follows then.
type Adopted struct {
	Ref     Ref
	Leaving bool
}

// Appeared reports a pod that was started from outside and has a network. Ref comes from Machine.NextRef.
type Appeared struct{ Ref Ref }

// Leaving reports that the pod is being removed from outside. Its process may still run; Exited or StopDone follows.
type Leaving struct {
	Ref Ref
	Why string // who removes it, and why; empty if that is not known
}

// Away reports that the daemon on the pod's home node is silent. The node may be lost, or come back.
type Away struct{ Ref Ref }

// Back reports that the daemon on the home node of a pod that was Away is back.
type Back struct{ Ref Ref }

// Rejoined reports that a daemon has connected, or refers to a pod that is gone, and needs the list of pods.
type Rejoined struct{}

// Timer reports that the time of the last ArmTimer has come. An early or late Timer does no harm.
type Timer struct {
	// Rolling is set while the runtime replaces the service's pods, and so may have more of them than desired.
	Rolling bool
}

func (WakeAsked) event()    {}
func (PhaseEnded) event()   {}
func (NetworkReady) event() {}
func (Waits) event()        {}
func (Sockets) event()      {}
func (Started) event()      {}
func (StartFailed) event()  {}
func (Listening) event()    {}
func (Unready) event()      {}
func (Deaf) event()         {}
func (Trace) event()        {}
func (Exited) event()       {}
func (Ended) event()        {}
func (IdleSeen) event()     {}
func (Quiet) event()        {}
func (FlowsSeen) event()    {}
func (StopDone) event()     {}
func (SleepAsked) event()   {}
func (Scale) event()        {}
func (SpecChanged) event()  {}
func (RestartAsked) event() {}
func (Deleted) event()      {}
func (Adopted) event()      {}
func (Appeared) event()     {}
func (Leaving) event()      {}
func (Away) event()         {}
func (Back) event()         {}
func (Rejoined) event()     {}
func (Timer) event()        {}
func (FrozenSeen) event()   {}
func (Pressed) event()      {}
func (ThawAsked) event()    {}
