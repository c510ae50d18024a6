// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const kindsOfVolume = "a volume is persistent, a hostPath, an emptyDir, a secret or a configMap"

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

// configVolume checks a volume of files.
func (e *ValidationErrors) configVolume(p *field.Path, c *configVolume) {
	p = p.Child(c.field)
	if c.name == "" {
		e.add(p.Child(c.nameField), "write the name of a "+c.kind, "missing")
	}
	e.fileMode(p.Child("defaultMode"), c.mode)
	paths := map[string]int{}
	for i, item := range c.items {
		p := p.Child("items").Index(i)
		if item.Key == "" {
			e.add(p.Child("key"), "write a key of the "+c.kind, "missing")
		}
		clean := path.Clean(item.Path)
		switch first, twice := paths[clean]; {
		case item.Path == "":
			e.add(p.Child("path"), "write the name of the file, for example path: app.conf", "missing")
		case path.IsAbs(item.Path) || hasDotDot(item.Path) || strings.IndexByte(item.Path, 0) >= 0 || clean == ".":
			e.add(p.Child("path"), "write a path in the volume, for example path: app.conf",
				`want a relative path without "..", got %q`, item.Path)
		case twice:
			e.add(p.Child("path"), "write another path", "is already the path of items[%d]", first)
		default:
			paths[clean] = i
		}
		e.fileMode(p.Child("mode"), item.Mode)
	}
}

func (e *ValidationErrors) fileMode(p *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		e.add(p, "write "+fieldName(p)+": 0o400, for example", "want 0 to 0o777 (511), got %d", *mode)
	}
}

// subPath checks the path of a single file or folder of a volume.
func (e *ValidationErrors) subPath(p *field.Path, file string) {
	if path.IsAbs(file) || hasDotDot(file) || strings.IndexByte(file, 0) >= 0 {
		e.add(p, "write the path of a file in the volume, for example subPath: app.conf",
			`want a relative path without "..", got %q`, file)
	}
}
