// SPDX-License-Identifier: Apache-2.0

package sleep

// The states in which a service is asked, from the fastest.
const (
	stateWarm      = "warm"
	stateFrozen    = "frozen"
	stateReclaimed = "reclaimed"
	statePrepared  = "prepared"
	stateCold      = "cold"
)

var states = []string{stateWarm, stateFrozen, stateReclaimed, statePrepared, stateCold}

// Samples are all measurements of a run.
type Samples struct {
	Answers  []Answer  `json:"answers"`
	Sleepers *Sleepers `json:"sleepers,omitempty"`
	Survival *Survival `json:"survival,omitempty"`
	Flap     *Flap     `json:"flap,omitempty"`
	Kube     *Kube     `json:"kubernetes,omitempty"`
}

// Answer is one request on a connection of its own to a service in a state.
type Answer struct {
	App   string `json:"app"`
	State string `json:"state"`
	// Connect is the time until the connection was established, FirstByte until the answer began, in milliseconds.
	Connect   float64 `json:"connect_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	// Resident and Swapped are the memory of the pod just before, in MB.
	Resident float64 `json:"resident_mb"`
	Swapped  float64 `json:"swapped_mb"`
	// Load is the machine's load average of the last minute.
	Load string `json:"load"`
}

// Kube is what was measured on a cluster, with the hello image.
type Kube struct {
	Answers []Answer `json:"answers"`
	// Knative has the answers of a Knative service, cold and warm.
	Knative []Answer `json:"knative,omitempty"`
	// RequestsAwake and RequestsFrozen are the requests of a pod for processors, in cores, while it runs and frozen.
	RequestsAwake  float64 `json:"requests_awake_cores"`
	RequestsFrozen float64 `json:"requests_frozen_cores"`
}

// Sleepers is what many frozen pods cost.
type Sleepers struct {
	Pods int `json:"pods"`
	// Shims is the memory of containerd and of all shims, in MB, where pages that several share are divided among them.
	Shims float64 `json:"shims_pss_mb"`
	// Resident and Swapped are the memory of all the pods themselves, in MB.
	Resident float64 `json:"resident_mb"`
	Swapped  float64 `json:"swapped_mb"`
	// CPU is the use of one core by all processes of the instance, its containerd and shims among them, in percent, and
	// Parts that of the daemon and the controller alone. Seconds is how long it was measured.
	CPU     float64 `json:"cpu_percent"`
	Parts   float64 `json:"parts_cpu_percent"`
	Seconds float64 `json:"cpu_s"`
	// Thaw has the times to the first byte from one pod while all others are frozen, in milliseconds.
	Thaw []float64 `json:"thaw_ms"`
	// Storm has the answers of a hundred pods, or of all if there are fewer, that were asked at once.
	Storm []float64 `json:"storm_ms"`
	Load  string    `json:"load"`
}

// Survival is what became of open connections, and of the instance's resources.
type Survival struct {
	Services int `json:"services"`
	Freezes  int `json:"freezes"`
	Tried    int `json:"connections_tried"`
	Survived int `json:"connections_survived"`
	// First is the first error of a connection.
	First string `json:"first_error,omitempty"`
	// Exchange has the times of an exchange on an open connection of a frozen pod, in milliseconds, one pod at a time.
	// Storm has those until the first byte when all are asked at once, and NewStorm those on new connections.
	Exchange []float64 `json:"exchange_ms"`
	Storm    []float64 `json:"storm_ms"`
	NewStorm []float64 `json:"new_storm_ms,omitempty"`
	// Before and After are what the instance had after the first freezes, and at the end.
	Before Resources `json:"before"`
	After  Resources `json:"after"`
	Load   string    `json:"load"`
}

// Resources are what could leak, with all pods frozen.
type Resources struct {
	Files   int `json:"files"`   // open in daemon and controller
	Threads int `json:"threads"` // of daemon and controller
	Cgroups int `json:"cgroups"` // of the instance, in all hierarchies
}

// Flap is what became of requests at the moments at which their pods were being frozen.
type Flap struct {
	Seconds  float64 `json:"seconds"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	First    string  `json:"first_error,omitempty"`
	Freezes  int     `json:"freezes"`
	Longest  float64 `json:"longest_ms"`
	Load     string  `json:"load"`
}

// of returns values of the answers of an app in a state.
func of(s Samples, app, state string, value func(Answer) float64) (list []float64) {
	for _, a := range s.Answers {
		if a.App == app && a.State == state {
			list = append(list, value(a))
		}
	}
	return list
}

func firstByte(a Answer) float64 { return a.FirstByte }

func connect(a Answer) float64 { return a.Connect }

func resident(a Answer) float64 { return a.Resident }

func swapped(a Answer) float64 { return a.Swapped }
