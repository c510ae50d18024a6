// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
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
	t.spec.Command, t.spec.Args, t.spec.WorkingDir = s.Entrypoint, s.Command, s.WorkingDir
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		if value := s.Environment[name]; value != nil {
			t.spec.Env = append(t.spec.Env, corev1.EnvVar{Name: name, Value: *value})
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
	if any {
		t.spec.SecurityContext = &c
	}
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
	if n := s.GetScale(); n > 1 {
		t.lost("deploy.replicas", "%d: pods follow the load instead: write maxReplicas: %d and scaling", n, n)
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
}

// roundUp returns whole seconds, at least one.
func roundUp(d types.Duration) int64 {
	return max(int64(math.Ceil(time.Duration(d).Seconds())), 1)
}

// rest adds notes for the fields that were not translated.
func (t *translation) rest() {
	s := t.service
	for _, f := range []struct {
		field string
		set   bool
		why   string
	}{
		{"build", s.Build != nil, "the image is not built: do so with another tool, and load it with 'wangell image load'"},
		{"network_mode", s.NetworkMode != "" && hostOf(s) == "", "each pod has a network of its own"},
		{"network_mode", s.Net != "", "each pod has a network of its own"},
		{"links", len(s.Links)+len(s.ExternalLinks) > 0, "services are reached by their own names"},
		{"hostname", s.Hostname != "" && s.Hostname != s.Name, "it is the name of the service"},
		{"extra_hosts", len(s.ExtraHosts) > 0, "names are those of services and of the machine's resolver"},
		{"dns", len(s.DNS)+len(s.DNSSearch)+len(s.DNSOpts) > 0, "see wangell up --resolv-conf"},
		{"devices", len(s.Devices)+len(s.Gpus) > 0, "pods get no devices unless they are privileged"},
		{"ulimits", len(s.Ulimits) > 0, "the limit of open files is 65536"},
		{"sysctls", len(s.Sysctls) > 0, "they are those of a new network namespace"},
		{"security_opt", len(s.SecurityOpt) > 0, "the default seccomp profile is used"},
		{"shm_size", s.ShmSize > 0, "/dev/shm has 64 MiB: mount an emptyDir with medium: Memory there"},
		{"pid", s.Pid != "" || s.Ipc != "" || s.Uts != "" || s.UserNSMode != "", "namespaces are the pod's own"},
		{"platform", s.Platform != "", "the machine's own is used"},
		{"pids_limit", s.PidsLimit > 0, "there is no limit of processes"},
		{"volumes_from", len(s.VolumesFrom) > 0, "write the volumes"},
		{"logging", s.Logging != nil && s.Logging.Driver != "", "logs are files in the state folder: wangell logs"},
		{"runtime", s.Runtime != "", "runc is used"},
		{"tty", s.Tty || s.StdinOpen, "there is no terminal"},
		{"post_start", len(s.PreStart)+len(s.PostStart)+len(s.PreStop) > 0, "hooks are not run"},
		{"group_add", len(s.GroupAdd) > 0, "groups are those of the image"},
		{"cpuset", s.CPUSet != "" || s.CPUShares > 0 || s.CPUQuota > 0, "write cpus"},
		{"memswap_limit", s.MemSwapLimit > 0, "swap is not limited"},
		{"labels", len(s.Labels) > 0, "write metadata.labels or metadata.annotations"},
	} {
		if f.set {
			t.lost(f.field, "%s", f.why)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.DependsOn)) {
		if c := s.DependsOn[name].Condition; c == types.ServiceConditionCompletedSuccessfully {
			t.lost("depends_on", "%s does not run to completion first: run it by hand", name)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.Networks)) {
		if c := s.Networks[n]; c != nil && len(c.Aliases) > 0 {
			t.lost("networks", "aliases are not names of the service: %s", fmt.Sprint(c.Aliases))
		}
	}
}
