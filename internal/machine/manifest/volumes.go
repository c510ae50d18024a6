// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/text"
)

// volumeConflicts checks the persistent volumes of a service against those of the services loaded before it.
func (l *loader) volumeConflicts(d *decoder, doc *document, s *v1alpha1.WangellService) {
	key := v1alpha1.KeyOf(s)
	for i := range s.Spec.Volumes {
		v := &s.Spec.Volumes[i]
		if v.Persistent == nil {
			continue
		}
		field := fmt.Sprintf("spec.volumes[%d].persistent", i)
		at := doc.find(field)
		name := s.Namespace + "/" + v.VolumeName(s.Name)
		use := volumeUse{key, place{doc.file, at.Line}, v.Persistent.Bytes(), s.Spec.Writes(v.Name), v.Persistent.Shared}
		other, taken := l.volumes[name]
		switch {
		case taken && use.size != other.size:
			d.fail(at, pathOf(field), fmt.Sprintf("write the same size as at %s", other.at),
				"volume %s has the size %s here, but %s for %s", name, text.BytesLimit(use.size),
				text.BytesLimit(other.size), other.key)
		case taken && use.writes && other.writes && !(use.shared && other.shared):
			d.fail(at, pathOf(field), "use another name, mount it readOnly, or write shared: true in both services",
				"volume %s is already written by %s at %s", name, other.key, other.at)
		case !taken || use.writes && !other.writes || use.writes && !use.shared:
			l.volumes[name] = use
		}
	}
}

// volumeTaken reports whether another service, of those loaded, has a volume that an earlier version of s conflicts
// with.
func (l *loader) volumeTaken(s *v1alpha1.WangellService) bool {
	for _, v := range s.Spec.PersistentVolumes() {
		other, taken := l.volumes[s.Namespace+"/"+v.VolumeName(s.Name)]
		if taken && other.key != v1alpha1.KeyOf(s) && !l.errs.concern(other.at.file) &&
			(other.size != v.Persistent.Bytes() || other.writes && s.Spec.Writes(v.Name) &&
				!(other.shared && v.Persistent.Shared)) {
			return true
		}
	}
	return false
}
