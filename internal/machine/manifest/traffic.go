// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"

	"wangell.loutres.me/api/v1alpha1"
)

// revisions checks that the services to which requests go exist, once all documents are read.
func (l *loader) revisions() {
	all := map[v1alpha1.Key]*v1alpha1.WangellService{}
	for _, s := range l.services {
		all[v1alpha1.KeyOf(s.WangellService)] = s.WangellService
	}
	for _, s := range l.services {
		d := &decoder{file: s.doc.file, errs: &l.errs, tree: newTree(s.doc.size)}
		for i, r := range s.Spec.Traffic {
			if r.Revision == "" {
				continue
			}
			at := fmt.Sprintf("spec.traffic[%d].revision", i)
			key := v1alpha1.Key(s.Namespace + "/" + r.Revision)
			to := all[key]
			if to == nil {
				d.fail(s.doc.find(at), pathOf(at), "add its manifest, or remove the revision",
					"there is no service %s in these manifests", key)
			} else if why, fix := v1alpha1.CheckRevision(to); why != "" {
				d.fail(s.doc.find(at), pathOf(at), fix, "service %s cannot be a revision: %s", key, why)
			}
		}
	}
}
