// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

func (e *ValidationErrors) volumes(volumes []Volume) {
	seen := make(map[string]int, len(volumes))
	for i := range volumes {
		v := &volumes[i]
		p := specPath.Child("volumes").Index(i)
		if v.Name == "" {
			e.add(p.Child("name"), "write name: data, for example", "missing")
		} else if first, twice := seen[v.Name]; twice {
			e.add(p.Child("name"), "write another name", "%q is already the name of spec.volumes[%d]", v.Name, first)
		} else {
			seen[v.Name] = i
			e.label(p.Child("name"), v.Name)
		}
		e.volumeSource(p, v)
	}
}

const kindsOfVolume = "a volume is persistent, a hostPath, an emptyDir, a secret or a configMap"

func (e *ValidationErrors) volumeSource(p *field.Path, v *Volume) {
	s := &v.VolumeSource
	sources := setFields(s)
	if v.Persistent != nil {
		sources = append(sources, "persistent")
		e.persistent(p.Child("persistent"), v.Persistent)
	}
	if len(sources) == 0 {
		e.add(p, "write persistent: {} or emptyDir: {} or hostPath: {path: /some/folder}", "has no kind of volume")
	}
	if len(sources) > 1 {
		e.add(p, "keep one of them", "must have one kind of volume, got %s", strings.Join(sources, " and "))
	}
	for _, kind := range sources {
		switch kind {
		case "persistent", "hostPath", "emptyDir":
		case "secret", "configMap":
			e.configVolume(p, v.config())
		case "persistentVolumeClaim":
			e.add(p.Child(kind), "write persistent: {size: 10Gi}, for example",
				"is not available on one machine: "+kindsOfVolume)
		default:
			e.add(p.Child(kind), "put the files into a folder of this machine and write hostPath: {path: /that/folder}",
				"is not available on one machine: "+kindsOfVolume)
		}
	}
	if c := s.Secret; c != nil {
		e.refuseSet(p.Child("secret"), *c)
	}
	if h := s.HostPath; h != nil {
		e.hostPath(p.Child("hostPath"), h)
	}
	if d := s.EmptyDir; d != nil {
		p := p.Child("emptyDir")
		e.oneOf(p.Child("medium"), string(d.Medium), string(corev1.StorageMediumMemory))
		if d.SizeLimit != nil && d.SizeLimit.Sign() <= 0 {
			e.add(p.Child("sizeLimit"), "write sizeLimit: 64Mi, or leave it out for no limit",
				"want more than zero, got %s", d.SizeLimit.String())
		}
		e.refuseSet(p, *d)
	}
}

// setFields returns the JSON names of the fields of a struct that are set: "hostPath", "configMap", ...
func setFields[T any](s *T) []string {
	var names []string
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, tag)
		}
	}
	return names
}

func (e *ValidationErrors) hostPath(p *field.Path, h *corev1.HostPathVolumeSource) {
	if h.Path == "" {
		e.add(p.Child("path"), "write path: /some/folder", "missing")
	} else {
		e.absolute(p.Child("path"), h.Path)
	}
	if h.Type != nil {
		e.oneOf(p.Child("type"), string(*h.Type), string(corev1.HostPathDirectory), string(corev1.HostPathDirectoryOrCreate),
			string(corev1.HostPathFile), string(corev1.HostPathFileOrCreate), string(corev1.HostPathSocket),
			string(corev1.HostPathCharDev), string(corev1.HostPathBlockDev))
	}
}

func (e *ValidationErrors) volumeMounts(list *field.Path, mounts []corev1.VolumeMount, volumes []Volume) {
	seen := make(map[string]int, len(mounts))
	for i := range mounts {
		m := &mounts[i]
		p := list.Index(i)
		if m.Name == "" {
			e.add(p.Child("name"), "write the name of one of spec.volumes", "missing")
		} else if !slices.ContainsFunc(volumes, func(v Volume) bool { return v.Name == m.Name }) {
			e.add(p.Child("name"), noSuchVolume(m.Name, volumes), "there is no volume %q in spec.volumes", m.Name)
		}
		if m.MountPath == "" {
			e.add(p.Child("mountPath"), "write its path in the container, for example mountPath: /data", "missing")
		} else if e.absolute(p.Child("mountPath"), m.MountPath) {
			at := path.Clean(m.MountPath)
			if first, twice := seen[at]; twice {
				e.add(p.Child("mountPath"), "write another path", "%s[%d] is already mounted at %s", list, first, at)
			} else {
				seen[at] = i
			}
			if at == "/" || at == "/proc" || strings.HasPrefix(at, "/proc/") || strings.Contains(at, ":") {
				e.add(p.Child("mountPath"), "write another path, for example mountPath: /data",
					"nothing can be mounted at %s (neither at / nor in /proc nor at a path with a colon)", at)
			}
		}
		if i := slices.IndexFunc(volumes, func(v Volume) bool { return v.Name == m.Name }); i >= 0 && volumes[i].HasFiles() {
			e.subPath(p.Child("subPath"), m.SubPath)
		} else if m.SubPath != "" {
			e.add(p.Child("subPath"), "mount the whole volume", "is for volumes of kind secret and configMap on one machine")
		}
		e.refuseSet(p, *m)
	}
}

func noSuchVolume(name string, volumes []Volume) string {
	if len(volumes) == 0 {
		return fmt.Sprintf("add volumes: [{name: %s, emptyDir: {}}] to spec", toLabel(name))
	}
	names := make([]string, len(volumes))
	for i := range volumes {
		names[i] = volumes[i].Name
	}
	return "write the name of a volume: " + orList(names)
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
	e.refuseSet(p, *s)
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
