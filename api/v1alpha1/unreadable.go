// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotationUnreadable says why the spec of a service could not be read. It is never written to the API.
const annotationUnreadable = Group + "/unreadable"

// UnmarshalJSON reads a list of which some services cannot be read, because the schema in the API server is older than
// these types, or accepts what they do not. These have their metadata and status, and ValidateCluster returns why. The
// others must not wait for somebody to correct them.
func (l *WangellServiceList) UnmarshalJSON(text []byte) error {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata,omitempty"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*l = WangellServiceList{
		TypeMeta: list.TypeMeta, ListMeta: list.ListMeta, Items: make([]WangellService, len(list.Items)),
	}
	for i, item := range list.Items {
		if why := json.Unmarshal(item, &l.Items[i]); why != nil {
			if err := l.Items[i].readWithoutSpec(item, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// readWithoutSpec reads a service whose spec cannot be read.
func (s *WangellService) readWithoutSpec(text []byte, why error) error {
	var o struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Status            WangellServiceStatus `json:"status"`
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	*s = WangellService{TypeMeta: o.TypeMeta, ObjectMeta: o.ObjectMeta, Status: o.Status}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, annotationUnreadable, why.Error())
	return nil
}
