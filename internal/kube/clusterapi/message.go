// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// message returns the message of an answer of the API server, which is a Status object or text.
func message(text string) string {
	var s metav1.Status
	if json.Unmarshal([]byte(text), &s) == nil && s.Kind == "Status" && s.Message != "" {
		return s.Message
	}
	return text
}
