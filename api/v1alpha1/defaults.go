// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Default sets the fields that s leaves out.
func Default(s *WangellService) {
	s.APIVersion, s.Kind = APIVersion, Kind
	setDefault(&s.Namespace, DefaultNamespace)
	spec := &s.Spec
	setDefault(&spec.TargetPort, spec.Port)
	setDefault(&spec.IdleTimeout, spec.stopAfter())
	setDefault(&spec.IdleTimeout, DefaultIdleTimeout)
	setDefault(&spec.WakeTimeout, DefaultWakeTimeout)
	if p := spec.ImagePull; p != nil {
		setDefault(&p.When, PullOnCreate)
		setDefault(&p.Mode, PullFull)
	}
	if spec.Template == nil {
		if p := spec.ImagePull; p != nil {
			setDefault(&spec.ImagePullPolicy, p.Policy)
		}
		setDefault(&spec.ImagePullPolicy, corev1.PullIfNotPresent)
		for c := range spec.Others {
			setDefault(&c.ImagePullPolicy, corev1.PullIfNotPresent)
		}
	}
	setDefault(&spec.MaxParked, DefaultMaxParked)
	// A client cannot have more than there is room for.
	setDefault(&spec.MaxParkedPerSource, min(DefaultMaxParkedPerSource, spec.MaxParked))
	setPointer(&spec.TerminationGracePeriodSeconds, templateGrace(spec.Template))
	setPointer(&spec.Retries, DefaultRetries)
	setPointer(&spec.DrainTimeout, DefaultDrainTimeout)
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	setDefault(&spec.WakeProof, WakeProofAuto)
	setDefault(&spec.ReadyWhen, ReadyWhenListens)
	if spec.SplitsTraffic() {
		if spec.Balancing == nil {
			spec.Balancing = &Balancing{}
		}
		setDefault(&spec.Balancing.Level, LevelRequest)
	}
	if b := spec.Balancing; b != nil {
		setDefault(&b.LocalityPreference, LocalityNone)
		setDefault(&b.Level, LevelConnection)
		if b.Level == LevelRequest {
			setDefault(&b.Protocol, ProtocolAuto)
			setDefault(&b.ClientIdleTimeout, DefaultClientIdleTimeout)
		}
	}
	if c := spec.Scaling; c != nil {
		c.setDefaults()
		setDefault(&spec.MaxReplicas, max(DefaultMaxReplicasScaling, spec.MinReplicas))
	}
	setDefault(&spec.MaxReplicas, DefaultMaxReplicas)
}

// templateGrace returns the default of spec.terminationGracePeriodSeconds: the template's value, limited to the range.
func templateGrace(t *corev1.PodTemplateSpec) int64 {
	if t == nil || t.Spec.TerminationGracePeriodSeconds == nil {
		return DefaultTerminationGracePeriodSeconds
	}
	r := ranges["spec.terminationGracePeriodSeconds"]
	return min(max(*t.Spec.TerminationGracePeriodSeconds, r.Min), r.Max)
}

// mostPods returns how many pods a service may have.
func mostPods(s *WangellServiceSpec) int32 { return max(maxReplicas(s), s.MinReplicas) }

// maxReplicas returns spec.maxReplicas, or the value that Default would set.
func maxReplicas(s *WangellServiceSpec) int32 {
	switch {
	case s.MaxReplicas != 0:
		return s.MaxReplicas
	case s.Scaling != nil:
		return max(DefaultMaxReplicasScaling, s.MinReplicas)
	}
	return DefaultMaxReplicas
}

func (c *Scaling) setDefaults() {
	setDefault(&c.Metric, MetricConnections)
	setDefault(&c.OutInterval, DefaultOutInterval)
	setDefault(&c.InInterval, DefaultInInterval)
	setPointer(&c.OutStabilization, DefaultOutStabilization)
	setPointer(&c.InStabilization, DefaultInStabilization)
	setDefault(&c.MaxStep, DefaultMaxStep)
	if c.Metric == MetricConnections {
		setDefault(&c.BurstPerPod, min(c.Target, int32(ranges["spec.scaling.burstPerPod"].Max)))
	}
}

// setPointer makes *field point to value if it is nil.
func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// setDefault sets *field to value if it is zero.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
