// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Sleep says when the service sleeps, and when a pod runs ahead of its first client.
type Sleep struct {
	// Schedule lists periods in which a pod runs even while the service is unused, at most 16. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Schedule []WarmPeriod `json:"schedule,omitempty"`
	// Predict starts a pod before the service is likely to be used, and decides for how long it is kept without a packet,
	// from the gaps between its uses so far. While these are too few or too different, idleTimeout counts. Default: false.
	// +optional
	Predict bool `json:"predict,omitempty"`
	// FreezeAfter is the time without a packet after which the service's pods are frozen, 1s-8760h: their processes keep
	// their memory and connections, and run on when a packet needs an answer. It must be less than stopAfter. Default:
	// pods are not frozen.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,8}([.][0-9]{1,9})?(ms|s)|[0-9]{1,6}([.][0-9]{1,9})?m|[0-9]{1,4}([.][0-9]{1,9})?h){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="want whole seconds from 1s to 8760h: write freezeAfter: 5s, for example"
	FreezeAfter *metav1.Duration `json:"freezeAfter,omitempty"`
	// FreezeWhenBusy freezes pods even if they use the CPU without having been sent anything. Default: false, because
	// such pods work in the background.
	// +optional
	FreezeWhenBusy bool `json:"freezeWhenBusy,omitempty"`
	// Reclaim moves the memory of frozen pods to the swap of their machine, if it has one. Default: true.
	// +optional
	Reclaim *bool `json:"reclaim,omitempty"`
	// OnPressure says what happens to frozen pods when their node is short of memory, or has no room for the requests
	// of a pod that is thawed. Keep: nothing. Stop: the pods of the service are stopped early, with their grace
	// period, if no other such service has been unused for longer. It needs freezeAfter and minReplicas 0. Default:
	// Keep.
	// +optional
	// +kubebuilder:validation:Enum=Keep;Stop
	OnPressure PressurePolicy `json:"onPressure,omitempty"`
	// StopAfter is the time without a packet after which the service sleeps without a pod, 1s-8760h. It is another way to
	// write idleTimeout, which must not differ. Default: idleTimeout.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,8}([.][0-9]{1,9})?(ms|s)|[0-9]{1,6}([.][0-9]{1,9})?m|[0-9]{1,4}([.][0-9]{1,9})?h){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="want whole seconds from 1s to 8760h: write stopAfter: 30m, for example"
	StopAfter *metav1.Duration `json:"stopAfter,omitempty"`
	// Prepared is the number of pods that are kept complete but for the start of their program, so that a wake only has to
	// start one, 0-16. Each has a network, and takes about 8 MB. It needs updateStrategy: RollingUpdate, and neither
	// persistent volumes nor imagePull.mode: Lazy. Default: 0. One machine only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 16",message="want a number from 0 to 16: write prepared: 1, for example"
	Prepared int32 `json:"prepared,omitempty"`
}

// WarmPeriod is a period that comes again and again. Its times are cron expressions of five fields: minute, hour, day
// of month, month, day of week; or @hourly, @daily, @weekly, @monthly or @yearly.
type WarmPeriod struct {
	// From is when the period begins, for example 0 8 * * MON-FRI. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	From string `json:"from"`
	// To is when it ends, for example 0 18 * * MON-FRI. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	To string `json:"to"`
	// TimeZone is the name of the time zone of both in the IANA database, for example Europe/Paris. Default: UTC.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// PressurePolicy says what becomes of frozen pods whose node is short of room.
type PressurePolicy string

// The policies.
const (
	PressureKeep PressurePolicy = "Keep"
	PressureStop PressurePolicy = "Stop"
)
