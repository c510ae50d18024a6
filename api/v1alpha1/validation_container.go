// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxContainers is the largest number of containers of a pod beside its main one.
const MaxContainers = 16

// containers checks the containers beside the main one: on Kubernetes, only what the API server would not explain well.
func (e *ValidationErrors) containers(name string, s *WangellServiceSpec, cluster bool) {
	seen := map[string]string{name: "the main container, which has the name of the service"}
	if n := len(s.Containers) + len(s.InitContainers); n > MaxContainers {
		e.add(specPath.Child("containers"), "make it several services",
			"a pod has %d containers beside its main one, at most %d are possible", n, MaxContainers)
	}
	for _, list := range []struct {
		at   string
		init bool
		of   []Container
	}{{"initContainers", true, s.InitContainers}, {"containers", false, s.Containers}} {
		for i := range list.of {
			c, p := &list.of[i], specPath.Child(list.at).Index(i)
			if c.Name == "" {
				e.add(p.Child("name"), "write name: log, for example", "missing")
			} else if first, twice := seen[c.Name]; twice {
				e.add(p.Child("name"), "write another name", "%q is already the name of %s", c.Name, first)
			} else {
				seen[c.Name] = p.String()
				e.label(p.Child("name"), c.Name)
			}
			if c.RestartPolicy != nil && (!list.init || !c.IsSidecar()) {
				e.add(p.Child("restartPolicy"), "remove it", "is for init containers, which it makes sidecars: Always, got %q",
					*c.RestartPolicy)
			}
			e.imageAt(p.Child("image"), c.Image)
			e.oneOf(p.Child("imagePullPolicy"), string(c.ImagePullPolicy),
				string(corev1.PullIfNotPresent), string(corev1.PullAlways), string(corev1.PullNever))
			if !cluster {
				e.container(p, c, s.Volumes)
			}
		}
	}
}

// container checks what one machine needs to know of a container, the main one or another.
func (e *ValidationErrors) container(p *field.Path, c *Container, volumes []Volume) {
	e.process(p, c.Command, c.Args, c.WorkingDir, c.Env)
	e.envFrom(p.Child("envFrom"), c.EnvFrom)
	e.resources(p.Child("resources"), &c.Resources)
	e.volumeMounts(p.Child("volumeMounts"), c.VolumeMounts, volumes)
	e.securityContext(p.Child("securityContext"), c.SecurityContext)
}

func (e *ValidationErrors) image(image string) { e.imageAt(specPath.Child("image"), image) }

func (e *ValidationErrors) imageAt(p *field.Path, image string) {
	const example = "image: registry.example.com/app:v1"
	if image == "" {
		e.add(p, "write which image to run, for example "+example, "missing")
		return
	}
	if err := parseImage(image); err != nil {
		e.add(p, "write registry/name:tag or registry/name@sha256:..., for example "+example,
			"%q is not an image reference: %s", image, strings.TrimSuffix(err.Error(), ": "+image))
	}
}

// parseImage is name.ParseReference with an error that says which part is invalid.
func parseImage(image string) error {
	if strings.Contains(image, "@") {
		_, err := name.NewDigest(image)
		return err
	}
	_, err := name.NewTag(image)
	return err
}

// process checks what is started in a container.
func (e *ValidationErrors) process(p *field.Path, command, args []string, dir string, env []corev1.EnvVar) {
	if len(command) > 0 && command[0] == "" {
		e.add(p.Child("command").Index(0), `write the program, for example command: ["/bin/server"]`, "is empty")
	}
	e.noNUL(p.Child("command"), command)
	e.noNUL(p.Child("args"), args)
	if dir != "" {
		e.absolute(p.Child("workingDir"), dir)
	}
	e.env(p.Child("env"), env)
}

func (e *ValidationErrors) env(at *field.Path, env []corev1.EnvVar) {
	seen := make(map[string]int, len(env))
	for i, v := range env {
		p := at.Index(i)
		if v.Name == "" {
			e.add(p.Child("name"), "write name: NAME", "missing")
		} else if len(validation.IsRelaxedEnvVarName(v.Name)) > 0 {
			e.add(p.Child("name"), "write a name such as LOG_LEVEL",
				"want printable ASCII characters other than =, got %q", v.Name)
		} else if first, twice := seen[v.Name]; twice {
			e.add(p.Child("name"), "remove one of the two", "%s is already set by %s[%d]", v.Name, at, first)
		} else {
			seen[v.Name] = i
		}
		if strings.IndexByte(v.Value, 0) >= 0 {
			e.add(p.Child("value"), "remove it", `contains a NUL character (\0), which cannot be passed to a process`)
		}
		if v.ValueFrom != nil {
			e.valueFrom(p, v)
		}
	}
}

// valueFrom checks a variable whose value is in a ConfigMap or a Secret.
func (e *ValidationErrors) valueFrom(p *field.Path, v corev1.EnvVar) {
	from, at := v.ValueFrom, p.Child("valueFrom")
	if v.Value != "" {
		e.add(p.Child("value"), "write one of the two", "cannot be set beside valueFrom")
	}
	sources := setFields(from)
	for _, kind := range sources {
		p := at.Child(kind)
		switch r, c := from.SecretKeyRef, from.ConfigMapKeyRef; kind {
		case "secretKeyRef":
			e.reference(p, KindSecret, r.Name)
			e.key(p, KindSecret, r.Key)
		case "configMapKeyRef":
			e.reference(p, KindConfigMap, c.Name)
			e.key(p, KindConfigMap, c.Key)
		default:
			e.add(p, "write value: with the value itself", "is not available on one machine: values are in "+
				"a secretKeyRef or a configMapKeyRef")
		}
	}
	if len(sources) != 1 {
		e.add(at, "write secretKeyRef: {name: db, key: password}, for example", "must have one source, got %d", len(sources))
	}
}

func (e *ValidationErrors) reference(p *field.Path, kind, name string) {
	if name == "" {
		e.add(p.Child("name"), "write the name of a "+kind, "missing")
	}
}

func (e *ValidationErrors) key(p *field.Path, kind, key string) {
	if key == "" {
		e.add(p.Child("key"), "write a key of the "+kind, "missing")
	}
}

// envFrom checks the sources of whole sets of variables.
func (e *ValidationErrors) envFrom(at *field.Path, list []corev1.EnvFromSource) {
	for i, f := range list {
		p := at.Index(i)
		if f.Prefix != "" && len(validation.IsRelaxedEnvVarName(f.Prefix)) > 0 {
			e.add(p.Child("prefix"), "write a prefix such as DB_", "want printable ASCII characters other than =, got %q",
				f.Prefix)
		}
		if (f.SecretRef == nil) == (f.ConfigMapRef == nil) {
			e.add(p, "write secretRef: {name: db} or configMapRef: {name: app}, for example", "must have one source")
			continue
		}
		if r := f.SecretRef; r != nil {
			e.reference(p.Child("secretRef"), KindSecret, r.Name)
		}
		if r := f.ConfigMapRef; r != nil {
			e.reference(p.Child("configMapRef"), KindConfigMap, r.Name)
		}
	}
}

// minMemory is the smallest memory limit with which runc can start a process. It also catches "64" and "64m" written
// for 64Mi.
var minMemory = resource.MustParse("4Mi")

func (e *ValidationErrors) resources(p *field.Path, r *corev1.ResourceRequirements) {
	e.resourceList(p.Child("limits"), r.Limits)
	e.resourceList(p.Child("requests"), r.Requests)
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok && limit.Sign() > 0 && limit.Cmp(minMemory) < 0 {
		e.add(p.Child("limits").Key("memory"), "write a size with its unit, for example memory: 64Mi",
			"%s is less than 4Mi, the least in which a process can start", limit.String())
	}
	for _, n := range sortedNames(r.Requests) {
		request := r.Requests[n]
		if limit, ok := r.Limits[n]; ok && request.Cmp(limit) > 0 {
			e.add(p.Child("requests").Key(string(n)), fmt.Sprintf("write %s: %s, or raise the limit", n, limit.String()),
				"%s is more than the limit, %s", request.String(), limit.String())
		}
	}
	if len(r.Claims) > 0 {
		e.add(p.Child("claims"), "remove it", "is not available on one machine")
	}
}

func (e *ValidationErrors) resourceList(p *field.Path, l corev1.ResourceList) {
	for _, n := range sortedNames(l) {
		q := l[n]
		switch {
		case n != corev1.ResourceCPU && n != corev1.ResourceMemory:
			e.add(p.Key(string(n)), "remove it, or write cpu: or memory:", "is not supported; only cpu and memory are")
		case q.Sign() <= 0:
			example := map[corev1.ResourceName]string{corev1.ResourceCPU: "500m", corev1.ResourceMemory: "64Mi"}[n]
			e.add(p.Key(string(n)), fmt.Sprintf("write %s: %s, or leave it out for no limit", n, example),
				"want more than zero, got %s", q.String())
		}
	}
}

func sortedNames(l corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(l))
	for n := range l {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (e *ValidationErrors) securityContext(p *field.Path, s *corev1.SecurityContext) {
	if s == nil {
		return
	}
	if s.RunAsUser != nil {
		e.pathInRange(p.Child("runAsUser"), *s.RunAsUser)
	}
	if s.RunAsGroup != nil {
		e.pathInRange(p.Child("runAsGroup"), *s.RunAsGroup)
		if s.RunAsUser == nil {
			e.add(p.Child("runAsGroup"), "add runAsUser: 1000, for example", "needs runAsUser as well")
		}
	}
	if c := s.Capabilities; c != nil {
		e.capabilities(p.Child("capabilities").Child("add"), c.Add)
		e.capabilities(p.Child("capabilities").Child("drop"), c.Drop)
	}
	e.escalation(p.Child("allowPrivilegeEscalation"), s)
	e.refuseSet(p, *s)
}

// escalation refuses what Kubernetes refuses: a program that has all privileges cannot be kept from gaining some.
func (e *ValidationErrors) escalation(p *field.Path, s *corev1.SecurityContext) {
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		return
	}
	switch {
	case s.Privileged != nil && *s.Privileged:
		e.add(p, "remove it, or privileged", "cannot be false with privileged: true")
	case s.Capabilities != nil && slices.Contains(s.Capabilities.Add, "SYS_ADMIN"):
		e.add(p, "remove it, or the capability", "cannot be false with the capability SYS_ADMIN")
	}
}

func (e *ValidationErrors) capabilities(p *field.Path, names []corev1.Capability) {
	for i, c := range names {
		n := string(c)
		if n == "ALL" || slices.Contains(knownCapabilities, n) {
			continue
		}
		bare := strings.TrimPrefix(strings.ToUpper(n), "CAP_")
		fix := "write a name of capabilities(7) without CAP_, for example NET_BIND_SERVICE"
		if slices.Contains(knownCapabilities, bare) {
			fix = "write " + bare
		}
		e.add(p.Index(i), fix, "%q is not a capability", n)
	}
}

// knownCapabilities are the capabilities of linux/capability.h, without CAP_.
var knownCapabilities = strings.Fields(`
	AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE
	DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE
	MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID
	SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO
	SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM`)
