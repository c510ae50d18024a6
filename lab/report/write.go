// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write writes dir/NAME.json, .md, .svg and .png. It creates dir if necessary.
func (r *Report) Write(dir string) error {
	if r.Name == "" || r.Figure == nil {
		return errors.New("write report: name and figure are required")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write report %s: %w", r.Name, err)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report %s: %w", r.Name, err)
	}
	svg, png, err := render(r.Figure)
	if err != nil {
		return fmt.Errorf("write report %s: draw the figure: %w", r.Name, err)
	}
	files := map[string][]byte{".json": append(data, '\n'), ".md": r.Markdown(), ".svg": svg, ".png": png}
	for extension, content := range files {
		if err := os.WriteFile(filepath.Join(dir, r.Name+extension), content, 0o644); err != nil {
			return fmt.Errorf("write report %s: %w", r.Name, err)
		}
	}
	return nil
}
