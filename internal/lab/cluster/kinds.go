// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wangell.loutres.me/api/v1alpha1"
)

// WangellServices is the resource of Wangell's own kind.
var WangellServices = schema.GroupVersionResource{
	Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: "wangellservices",
}
