// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/internal/monotime"
)

// State is the state of a service.
type State uint8

// The states of a service.
const (
	Cold     State = iota // no pod
	Waking                // no pod serves; one is being started, or will be as soon as the one before it is gone
	Warm                  // a pod serves, or several
	Stopping              // all pods are drained, then ended
	Failed                // the last wake failed; no pod
)

var stateNames = [...]string{"Cold", "Waking", "Warm", "Stopping", "Failed"}

// String returns the state's name as it stands in a manifest's status.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "Unknown"
}

// States are all states, for those who count services by state.
func States() []State { return []State{Cold, Waking, Warm, Stopping, Failed} }

// Ref names a pod of a service. The machine numbers the pods, from 1 (NextRef); a number is never used twice for a
// service.
type Ref uint64

// Spec is what the machine has to know of a service.
type Spec struct {
	// Name is "namespace/name", for messages.
	Name string
	// Port is the port on which the pod is expected to listen, for messages.
	Port uint16
	// WakeTimeout is how long a wake may take until the pod listens.
	WakeTimeout time.Duration
	// Grace is how long a pod has between SIGTERM and SIGKILL.
	Grace time.Duration
	// DrainTimeout is how long the flows of a pod may go on that is replaced, or not needed any more while others
	// serve. Default: Grace.
	DrainTimeout time.Duration
	// Min is how many pods there are at least: above 0 the service never sleeps by itself.
	Min int
	// Max is how many there may be. Default: 1, or Min.
	Max int
	// BurstPerPod is how many parked connection requests one pod is started for, if a wake finds several. Default: one pod,
	// however many are parked.
	BurstPerPod int
	// Rolls: the runtime replaces the pods of an old spec by itself, and the place where a pod was does not have to be
	// free before the next one starts.
	Rolls bool
}

// MaxReplicas bounds the pods that a service is to have.
const MaxReplicas = 32

// clamp brings a number of pods, at least 1, into the limits.
func (s Spec) clamp(n int) int {
	return min(max(n, 1, s.Min), max(s.Max, 1, s.Min), MaxReplicas)
}

// burst is how many pods a wake starts at once for so many parked connection requests.
func (s Spec) burst(parked uint32) int {
	if s.BurstPerPod <= 0 {
		return s.clamp(1)
	}
	return s.clamp(int((uint64(parked) + uint64(s.BurstPerPod) - 1) / uint64(s.BurstPerPod)))
}

// drainTimeout is how long a pod without new flows may go on.
func (s Spec) drainTimeout() time.Duration {
	if s.DrainTimeout > 0 {
		return s.DrainTimeout
	}
	return s.Grace
}

// Event is one of the structs below.
type Event interface{ event() }

// WakeAsked: a daemon has parked SYNs of this service. Times are zero when not known.
type WakeAsked struct {
	Seq           uint64        // the daemon's count of the wakes it asked for this service
	SYNSeen, Told monotime.Time // first SYN parked; the daemon's user space read of it
	Parked        uint32        // SYNs parked so far
}

// PhaseEnded: the runtime has finished a step of starting a pod: PhaseImage, PhaseSandbox,
// PhaseCreated or PhaseStarted.
type PhaseEnded struct {
	Ref   Ref
	Phase PhaseName
	At    monotime.Time
}

// NetworkReady: the pod has its network and address; daemons can watch for its socket.
type NetworkReady struct{ Ref Ref }

// Started: the pod's process runs, and StartPod is done.
type Started struct{ Ref Ref }

// StartFailed: StartPod is done and failed. Nothing of the pod remains; if the pod was seen to listen all the same, or
// was told to stop, StopPod makes sure of that. Retryable means that the same call may work a moment later (the
// runtime did not answer).
type StartFailed struct {
	Ref       Ref
	Err       error
	Retryable bool
}

// Listening: the pod's socket listens, as its home node's kernel said.
type Listening struct {
	Ref Ref
	At  monotime.Time
}

// Trace: times of a wake that only the gate knows; zero means not (yet) known.
type Trace struct {
	Ref                              Ref
	Released, FirstSYNACK, FirstByte monotime.Time
	ReleasedN                        uint32 // how many parked SYNs were released
}

// PodExited: the pod's process ended. Its remains are there until StopPod is done.
type PodExited struct {
	Ref     Ref
	Code    uint32 // 128+n for signal n
	LogTail string // the end of what the process wrote
}

// IdleSeen: no packet for the service's idle timeout, on no node that has one of its pods.
type IdleSeen struct {
	LastPacket monotime.Time
	// Of tells it for each pod, as its own node's clock has it; LastPacket stands for those that are not in it.
	Of map[Ref]monotime.Time
}

// Quiet: no gate gives the pod a new flow any more, since they have the backends of Generation.
type Quiet struct {
	Ref        Ref
	Generation uint64
	LastPacket monotime.Time
	OpenFlows  uint32
}

// FlowsSeen: how many flows of the pod are open.
type FlowsSeen struct {
	Ref  Ref
	Open uint32
}

// StopDone: StopPod is done; nothing of the pod remains.
type StopDone struct{ Ref Ref }

// SleepAsked: a user wants the service to sleep now.
type SleepAsked struct{}

// Scale: the service shall have N pods, as far as its spec allows. 0 is as SleepAsked. Why is for users.
type Scale struct {
	N   int
	Why string
}

// SpecChanged: the manifest changed. Restart tells whether running pods have to be replaced.
type SpecChanged struct {
	Spec    Spec
	Restart bool
}

// Deleted: the manifest is gone.
type Deleted struct{}

// Adopted: a pod of the service was found running. Ref must be a number that was not used for this service before. Leaving:
// somebody else takes it away already; as after Leaving, PodExited or StopDone follows.
type Adopted struct {
	Ref     Ref
	Leaving bool
}

// Appeared: somebody else started a pod of the service; its network is there. Ref is as in Adopted.
type Appeared struct{ Ref Ref }

// Leaving: somebody else takes the pod away; its process may still run. PodExited or StopDone follows.
type Leaving struct{ Ref Ref }

// Away: nothing is heard of the pod's home node. It may be lost, or be back soon.
type Away struct{ Ref Ref }

// Back: the home node of a pod that was Away is heard again.
type Back struct{ Ref Ref }

// Rejoined: a daemon came (back), or speaks of a pod that is gone, and needs to be told of the pods.
type Rejoined struct{}

// Timer: the time of the last ArmTimer has come. An early or late one does no harm.
type Timer struct {
	// Rolling: the runtime is replacing the service's pods, and may have more of them than are wanted meanwhile.
	Rolling bool
}

func (WakeAsked) event()    {}
func (PhaseEnded) event()   {}
func (NetworkReady) event() {}
func (Started) event()      {}
func (StartFailed) event()  {}
func (Listening) event()    {}
func (Trace) event()        {}
func (PodExited) event()    {}
func (IdleSeen) event()     {}
func (Quiet) event()        {}
func (FlowsSeen) event()    {}
func (StopDone) event()     {}
func (SleepAsked) event()   {}
func (Scale) event()        {}
func (SpecChanged) event()  {}
func (Deleted) event()      {}
func (Adopted) event()      {}
func (Appeared) event()     {}
func (Leaving) event()      {}
func (Away) event()         {}
func (Back) event()         {}
func (Rejoined) event()     {}
func (Timer) event()        {}
