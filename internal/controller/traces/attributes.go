// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"go.opentelemetry.io/otel/attribute"

	"wangell.loutres.me/api/v1alpha1"
)

// nameAttributes returns the namespace and the name of a service, "namespace/name", as attributes. That of the
// namespace is OpenTelemetry's semantic convention for Kubernetes.
func nameAttributes(service string) []attribute.KeyValue {
	namespace, name := v1alpha1.Key(service).Split()
	return []attribute.KeyValue{
		attribute.String("k8s.namespace.name", namespace), attribute.String("wangell.service.name", name),
	}
}
