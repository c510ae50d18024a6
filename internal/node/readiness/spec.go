// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Spec has the probes of a pod as the controller sends them to its home node.
type Spec struct {
	// Container is the container in which exec probes run.
	Container string `json:"container"`
	// Probe is the readinessProbe. It has Kubernetes' defaults, and numbers for ports.
	Probe *corev1.Probe `json:"probe"`
	// Startup is the startupProbe, which has to succeed before Probe begins; nil if there is none. Daemons that do not
	// know it begin with Probe.
	Startup *corev1.Probe `json:"startup,omitempty"`
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
	if !usable(s.Probe) || s.Startup != nil && !usable(s.Startup) {
		return s, fmt.Errorf("readinessProbe from the controller: without a probe, periodSeconds or timeoutSeconds")
	}
	return s, nil
}

func usable(p *corev1.Probe) bool { return p != nil && p.PeriodSeconds > 0 && p.TimeoutSeconds > 0 }
