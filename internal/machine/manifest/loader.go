// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"wangell.loutres.me/api/v1alpha1"
)

// objectID names an object.
type objectID struct{ kind, namespace, name string }

func (o objectID) String() string { return o.kind + " " + o.namespace + "/" + o.name }

// object is a Secret or a ConfigMap, to which services of its namespace refer.
type object struct {
	objectID
	values map[string][]byte
	at     place
}

// volumeUse is the first service that uses a persistent volume, or the first that may write to it.
type volumeUse struct {
	key    v1alpha1.Key
	at     place
	size   int64
	writes bool
	shared bool
}

// addressUse is the service that uses an address.
type addressUse struct {
	key  v1alpha1.Key
	port int32
	at   place
}

// loader collects the services and errors of one Load.
type loader struct {
	errs      Errors
	services  []service
	objects   []object
	names     map[v1alpha1.Key]place
	addresses map[string]addressUse
	volumes   map[string]volumeUse
}

func newLoader() *loader {
	return &loader{names: map[v1alpha1.Key]place{}, addresses: map[string]addressUse{},
		volumes: map[string]volumeUse{}}
}
