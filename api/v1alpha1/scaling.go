// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// ScalingMetric names the metric that the number of pods follows.
type ScalingMetric string

// The metrics of Scaling.
const (
	MetricConnections ScalingMetric = "connections" // open connections per pod, counted by the gate
	MetricRate        ScalingMetric = "rate"        // new connections per second per pod
	MetricCPU         ScalingMetric = "cpu"         // percent of the requested CPU
	MetricMemory      ScalingMetric = "memory"      // percent of the requested memory
	MetricRequests    ScalingMetric = "requests"    // requests per second per pod, counted by Envoy
	MetricConcurrency ScalingMetric = "concurrency" // requests per pod that are not answered yet
)

// OfRequests reports whether the metric is one of requests, which needs level Request.
func (m ScalingMetric) OfRequests() bool { return m == MetricRequests || m == MetricConcurrency }

// Scaling makes the number of pods follow the load: ceil(pods × value / target), unchanged within ±10 % of the target.
// Times are in seconds.
type Scaling struct {
	// Metric is connections (open, per pod), rate (new connections per second per pod), cpu or memory (percent of the
	// request); with balancing.level Request also requests (per second per pod) or concurrency (requests per pod that are
	// not answered yet). Default: connections.
	// +optional
	// +kubebuilder:default=connections
	// +kubebuilder:validation:Enum=connections;rate;cpu;memory;requests;concurrency
	Metric ScalingMetric `json:"metric,omitempty"`
	// Target is the wanted value of the metric per pod, 1-1000000. Required.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 1000000",message="want a number from 1 to 1000000: write target: 50, for example"
	Target int32 `json:"target"`
	// OutInterval is the shortest time between two steps that add pods, 1-3600. Default: 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write outInterval: 2, for example"
	OutInterval int64 `json:"outInterval,omitempty"`
	// InInterval is the shortest time between two steps that remove pods, 1-3600. Default: 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write inInterval: 10, for example"
	InInterval int64 `json:"inInterval,omitempty"`
	// OutStabilization is how long more pods must be needed before they are added, 0-3600. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="want seconds from 0 to 3600: write outStabilization: 0, for example"
	OutStabilization *int64 `json:"outStabilization,omitempty"`
	// InStabilization is how long fewer pods must suffice before pods are removed, 0-3600. Default: 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="want seconds from 0 to 3600: write inStabilization: 60, for example"
	InStabilization *int64 `json:"inStabilization,omitempty"`
	// MaxStep is the largest number of pods added or removed at once, 1-32. Default: 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 32",message="want a number from 1 to 32: write maxStep: 4, for example"
	MaxStep int32 `json:"maxStep,omitempty"`
	// BurstPerPod is the number of parked connection requests per pod started by a wake, 1-4096. Default: target, if the
	// metric is connections; otherwise a wake starts one pod.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4096",message="want a number from 1 to 4096: write burstPerPod: 100, for example, or leave it out"
	BurstPerPod int32 `json:"burstPerPod,omitempty"`
}
