// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
)

// program translates the command, its user and its environment.
func (t *translation) program() {
	s := t.service
	t.spec.Command, t.spec.Args, t.spec.WorkingDir = literals(s.Entrypoint), literals(s.Command), s.WorkingDir
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		if value := s.Environment[name]; value != nil {
			t.spec.Env = append(t.spec.Env, corev1.EnvVar{Name: name, Value: literal(*value)})
		} else {
			t.lost("environment", "%s has no value here: it is left out", name)
		}
	}
	if s.Init != nil && *s.Init {
		t.spec.Init = s.Init
	}
	t.spec.StopSignal = s.StopSignal
	if s.StopGracePeriod != nil {
		seconds := roundUp(*s.StopGracePeriod)
		t.spec.TerminationGracePeriodSeconds = &seconds
	}
	switch s.PullPolicy {
	case "", types.PullPolicyMissing, types.PullPolicyIfNotPresent:
	case types.PullPolicyAlways:
		t.spec.ImagePullPolicy = corev1.PullAlways
	case types.PullPolicyNever:
		t.spec.ImagePullPolicy = corev1.PullNever
	default:
		t.lost("pull_policy", "%s is not known: the image is pulled if it is missing", s.PullPolicy)
	}
	t.security()
}

// literal returns a text that a manifest's expansion of $(NAME) and $$ turns into the given one.
func literal(text string) string {
	if !strings.Contains(text, "$$") && !strings.Contains(text, "$(") {
		return text
	}
	return strings.ReplaceAll(text, "$", "$$")
}

func literals(words []string) (out []string) {
	for _, w := range words {
		out = append(out, literal(w))
	}
	return out
}

func (t *translation) security() {
	s := t.service
	var c corev1.SecurityContext
	any := false
	if s.User != "" {
		user, group, both := strings.Cut(s.User, ":")
		uid, err := strconv.ParseInt(user, 10, 64)
		gid, groupErr := strconv.ParseInt(group, 10, 64)
		if err != nil || both && groupErr != nil {
			t.lost("user", "%s is not a number: the user of the image is used; write UID:GID", s.User)
		} else {
			c.RunAsUser, any = &uid, true
			if both {
				c.RunAsGroup = &gid
			}
		}
	}
	if s.ReadOnly {
		c.ReadOnlyRootFilesystem, any = &s.ReadOnly, true
	}
	if s.Privileged {
		c.Privileged, any = &s.Privileged, true
	}
	if len(s.CapAdd)+len(s.CapDrop) > 0 {
		c.Capabilities, any = &corev1.Capabilities{Add: capabilities(s.CapAdd), Drop: capabilities(s.CapDrop)}, true
	}
	if slices.ContainsFunc(s.SecurityOpt, isNoNewPrivileges) {
		no := false
		c.AllowPrivilegeEscalation, any = &no, true
	}
	if any {
		t.spec.SecurityContext = &c
	}
}

// isNoNewPrivileges reports whether an option of security_opt keeps a program from gaining privileges.
func isNoNewPrivileges(option string) bool {
	return option == "no-new-privileges" || option == "no-new-privileges:true" || option == "no-new-privileges=true"
}

func capabilities(names []string) (out []corev1.Capability) {
	for _, n := range names {
		out = append(out, corev1.Capability(strings.TrimPrefix(strings.ToUpper(n), "CAP_")))
	}
	return out
}

// limits takes over CPU and memory.
func (t *translation) limits() {
	s := t.service
	limits, requests := corev1.ResourceList{}, corev1.ResourceList{}
	set := func(list corev1.ResourceList, cpus float32, memory types.UnitBytes) {
		if cpus > 0 {
			list[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(math.Ceil(float64(cpus)*1000)), resource.DecimalSI)
		}
		if memory > 0 {
			list[corev1.ResourceMemory] = *resource.NewQuantity(int64(memory), resource.BinarySI)
		}
	}
	set(limits, s.CPUS, s.MemLimit)
	set(requests, 0, s.MemReservation)
	if d := s.Deploy; d != nil {
		if l := d.Resources.Limits; l != nil {
			set(limits, l.NanoCPUs.Value(), l.MemoryBytes)
		}
		if r := d.Resources.Reservations; r != nil {
			set(requests, r.NanoCPUs.Value(), r.MemoryBytes)
		}
	}
	if len(limits) > 0 {
		t.spec.Resources.Limits = limits
	}
	if len(requests) > 0 {
		t.spec.Resources.Requests = requests
	}
	field := "deploy.replicas"
	if s.Scale != nil {
		field = "scale"
	}
	if n := s.GetScale(); n == 0 {
		t.assumed(field, "0: it is served all the same, and sleeps until a connection comes")
	} else if n > 1 {
		t.lost(field, "%d: pods follow the load instead: write maxReplicas: %d and scaling", n, n)
	}
}

// health makes the health check the probe that decides when a pod gets connections.
func (t *translation) health() {
	h := t.service.HealthCheck
	if h == nil || h.Disable || len(h.Test) == 0 || h.Test[0] == "NONE" {
		return
	}
	probe := &corev1.Probe{}
	switch h.Test[0] {
	case "CMD":
		probe.Exec = &corev1.ExecAction{Command: h.Test[1:]}
	case "CMD-SHELL":
		probe.Exec = &corev1.ExecAction{Command: append([]string{"/bin/sh", "-c"}, h.Test[1:]...)}
	default:
		t.lost("healthcheck.test", "%q is not known: a pod gets connections once it listens", h.Test[0])
		return
	}
	seconds := func(d *types.Duration, otherwise int32) int32 {
		if d == nil {
			return otherwise
		}
		return int32(roundUp(*d))
	}
	// The defaults of Compose.
	probe.PeriodSeconds, probe.TimeoutSeconds, probe.FailureThreshold = seconds(h.Interval, 30), seconds(h.Timeout, 30), 3
	if h.Retries != nil {
		probe.FailureThreshold = int32(max(*h.Retries, 1))
	}
	t.spec.ReadyWhen, t.spec.ReadinessProbe = v1alpha1.ReadyWhenProbed, probe
	// A program that may take this long to start is not to be ended before.
	if start := seconds(h.StartPeriod, 0); int64(start) > v1alpha1.DefaultWakeTimeout {
		t.spec.WakeTimeout = int64(start)
	}
}

// roundUp returns whole seconds, at least one.
func roundUp(d types.Duration) int64 {
	return max(int64(math.Ceil(time.Duration(d).Seconds())), 1)
}
