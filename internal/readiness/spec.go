// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Spec is a readinessProbe as the controller sends it to the home node of a pod.
type Spec struct {
	// Container is the container in which an exec probe runs.
	Container string `json:"container"`
	// Probe has Kubernetes' defaults, and numbers for ports.
	Probe *corev1.Probe `json:"probe"`
}

// Encode returns the text of a Spec.
func (s Spec) Encode() (string, error) {
	text, err := json.Marshal(s)
	return string(text), err
}

// Decode reads what Encode writes.
func Decode(text string) (Spec, error) {
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("readinessProbe from the controller: %w", err)
	}
	if s.Probe == nil || s.Probe.PeriodSeconds <= 0 || s.Probe.TimeoutSeconds <= 0 {
		return s, fmt.Errorf("readinessProbe from the controller: without a probe, periodSeconds or timeoutSeconds")
	}
	return s, nil
}
