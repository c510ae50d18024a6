// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
)

// mount adds a volume and mounts it.
func (t *translation) mount(target string, readOnly bool, source corev1.VolumeSource) {
	t.add(target, readOnly, v1alpha1.Volume{Volume: corev1.Volume{VolumeSource: source}})
}

func (t *translation) add(target string, readOnly bool, v v1alpha1.Volume) {
	name := fmt.Sprintf("v%d", len(t.spec.Volumes))
	v.Name = name
	t.spec.Volumes = append(t.spec.Volumes, v)
	t.spec.VolumeMounts = append(t.spec.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: filepath.Clean(target),
		ReadOnly: readOnly})
}

func hostPath(path string, kind corev1.HostPathType) corev1.VolumeSource {
	h := &corev1.HostPathVolumeSource{Path: path}
	if kind != "" {
		h.Type = &kind
	}
	return corev1.VolumeSource{HostPath: h}
}

func memory(size int64) corev1.VolumeSource {
	e := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	if size > 0 {
		e.SizeLimit = resource.NewQuantity(size, resource.BinarySI)
	}
	return corev1.VolumeSource{EmptyDir: e}
}

// layer says what becomes of the files that Compose keeps in a container that is stopped.
func (t *translation) layer() {
	if t.service.ReadOnly {
		return
	}
	t.assumed("image", "files that it writes are lost when it sleeps, except in its volumes and in those that the image "+
		"declares (VOLUME), which are kept")
}

// volumes translates folders of the machine, named volumes and file systems in memory.
func (t *translation) volumes() {
	for _, v := range t.service.Volumes {
		switch {
		case v.Type == types.VolumeTypeBind:
			kind := corev1.HostPathUnset
			if _, err := os.Stat(v.Source); errors.Is(err, fs.ErrNotExist) {
				if v.Bind != nil && bool(v.Bind.CreateHostPath) && filepath.Ext(v.Source) == "" {
					kind = corev1.HostPathDirectoryOrCreate
				} else {
					t.assumed("volumes", "%s is missing: create it before the service is woken", v.Source)
				}
			}
			if v.Source == "/var/run/docker.sock" {
				t.assumed("volumes", "%s is mounted, but nothing of Wangell answers there", v.Source)
				kind = corev1.HostPathUnset
			}
			t.mount(v.Target, v.ReadOnly, hostPath(v.Source, kind))
		case v.Type == types.VolumeTypeVolume && v.Source == "":
			t.anonymous(v)
		case v.Type == types.VolumeTypeVolume:
			t.named(v)
		case v.Type == types.VolumeTypeTmpfs:
			size := int64(0)
			if v.Tmpfs != nil {
				size = int64(v.Tmpfs.Size)
			}
			t.mount(v.Target, v.ReadOnly, memory(size))
		default:
			t.lost("volumes", "%s of type %s is not mounted", v.Target, v.Type)
		}
	}
	for _, path := range t.service.Tmpfs {
		target, options, _ := strings.Cut(path, ":")
		if options != "" {
			t.lost("tmpfs", "options of %s: %s", target, options)
		}
		t.mount(target, false, memory(0))
	}
}

// named mounts a named volume.
func (t *translation) named(v types.ServiceVolumeConfig) {
	config := t.project.Volumes[v.Source]
	if config.Driver != "" && config.Driver != "local" || len(config.DriverOpts) > 0 {
		t.lost("volumes", "driver %s of %s: a folder of this machine is used", config.Driver, v.Source)
	}
	if v.Volume != nil && v.Volume.Subpath != "" {
		t.lost("volumes", "subpath %s of %s: the whole volume is mounted", v.Volume.Subpath, v.Source)
	}
	name := label(t.project.Name) + "." + label(v.Source)
	t.assumed("volumes", "%s is the volume %s: it begins empty, without the files that the image has at %s", v.Source,
		name, v.Target)
	t.add(v.Target, v.ReadOnly, v1alpha1.Volume{Persistent: &v1alpha1.PersistentVolume{
		Name: name, Shared: t.users(v.Source) > 1,
	}})
}

// anonymous mounts a volume without a name. Compose keeps it for the service as well.
func (t *translation) anonymous(v types.ServiceVolumeConfig) {
	name := v1alpha1.ImageVolumeName(label(t.project.Name)+"."+label(t.service.Name), "", filepath.Clean("/"+v.Target))
	t.assumed("volumes", "%s is the volume %s: it begins empty, without the files that the image has there", v.Target,
		name)
	t.add(v.Target, v.ReadOnly, v1alpha1.Volume{Persistent: &v1alpha1.PersistentVolume{Name: name}})
}

// users returns how many services mount a named volume.
func (t *translation) users(volume string) (n int) {
	for _, s := range t.project.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeVolume && v.Source == volume {
				n++
				break
			}
		}
	}
	return n
}

// secrets mounts secrets and configs that are files.
func (t *translation) secrets() {
	for _, s := range t.service.Secrets {
		target := s.Target
		if target == "" {
			target = s.Source
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join("/run/secrets", target)
		}
		t.file("secrets", types.FileReferenceConfig(s), target, types.FileObjectConfig(t.project.Secrets[s.Source]))
	}
	for _, c := range t.service.Configs {
		target := c.Target
		if target == "" {
			target = "/" + c.Source
		}
		t.file("configs", types.FileReferenceConfig(c), target, types.FileObjectConfig(t.project.Configs[c.Source]))
	}
}

func (t *translation) file(field string, r types.FileReferenceConfig, target string, f types.FileObjectConfig) {
	if f.File == "" {
		t.lost(field, "%s is not a file: write it to one, and name that with file", r.Source)
		return
	}
	if r.UID != "" || r.GID != "" || r.Mode != nil {
		t.lost(field, "owner and mode of %s: they are those of %s", r.Source, f.File)
	}
	t.mount(target, true, hostPath(f.File, corev1.HostPathFile))
}
