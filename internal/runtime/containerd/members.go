// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"slices"

	"wangell.loutres.me/api/v1alpha1"
)

// membersOf returns the containers of a pod beside its main one, in the order in which they are started.
func (r *Runtime) membersOf(pod string) []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.members[pod])
}

// noteLabels restores a member from the labels of a record or a snapshot of an earlier process.
func (r *Runtime) noteLabels(labels map[string]string) {
	r.note(newMember(labels[labelPod], v1alpha1.Key(labels[labelService]), labels[labelContainer], labels[labelKind]))
}

// note makes a member known, unless it is.
func (r *Runtime) note(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.members[m.pod], func(o *member) bool { return o.id == m.id }) {
		r.members[m.pod] = append(r.members[m.pod], m)
	}
}

// containersOf returns the IDs of all containers of a pod.
func (r *Runtime) containersOf(pod string) []string {
	ids := []string{pod}
	for _, m := range r.membersOf(pod) {
		ids = append(ids, m.id)
	}
	return ids
}
