// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of WangellService.
var GroupVersion = schema.GroupVersion{Group: Group, Version: Version}

// Resource is that of WangellServices in the API.
var Resource = GroupVersion.WithResource("wangellservices")

// AddToScheme registers WangellService and its list in a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &WangellService{}, &WangellServiceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
