// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

// Key names a service: NAMESPACE/NAME.
type Key string

// KeyOf returns the key of a service.
func KeyOf(s *WangellService) Key { return Key(s.Namespace + "/" + s.Name) }

// Split returns the namespace and the name of the service.
func (k Key) Split() (namespace, name string) {
	namespace, name, _ = strings.Cut(string(k), "/")
	return namespace, name
}
