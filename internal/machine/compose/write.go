// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
)

// Write writes services as YAML documents.
func Write(w io.Writer, services []*v1alpha1.WangellService) error {
	for i, s := range services {
		text, err := json.Marshal(s)
		if err != nil {
			return err
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return err
		}
		delete(fields, "status")
		if m, ok := fields["metadata"].(map[string]any); ok {
			delete(m, "creationTimestamp")
		}
		out, err := yaml.Marshal(fields)
		if err != nil {
			return err
		}
		if i > 0 {
			out = append([]byte("---\n"), out...)
		}
		if _, err := w.Write(out); err != nil {
			return fmt.Errorf("write the manifests: %w", err)
		}
	}
	return nil
}
