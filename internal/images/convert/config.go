// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// newConfig returns an image's configuration with other layers. Unknown fields stay as they are.
func newConfig(text []byte, layers []layer, runs []run) ([]byte, error) {
	var fields map[string]json.RawMessage
	var history []ocispec.History
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if h, ok := fields["history"]; ok {
		if err := json.Unmarshal(h, &history); err != nil {
			return nil, fmt.Errorf("configuration: history: %w", err)
		}
	}
	same := true
	root := ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}
	for _, r := range runs {
		same = same && r.first == r.last && len(r.out) == 1 && r.out[0].DiffID == layers[r.first].diffID
		for _, p := range r.out {
			root.DiffIDs = append(root.DiffIDs, p.DiffID)
		}
	}
	if same {
		return text, nil
	}
	set := func(name string, v any) error {
		raw, err := json.Marshal(v)
		fields[name] = raw
		return err
	}
	if err := set("rootfs", root); err != nil {
		return nil, err
	}
	if len(history) > 0 {
		if err := set("history", newHistory(history, layers, runs)); err != nil {
			return nil, err
		}
	}
	return json.Marshal(fields)
}

// newHistory returns a history in which each layer of the result has an entry, as the format demands. Former entries
// stay; those whose layers were joined with later ones become empty layers. A history that does not match its image is
// returned unchanged.
func newHistory(history []ocispec.History, layers []layer, runs []run) []ocispec.History {
	count := 0
	for _, h := range history {
		if !h.EmptyLayer {
			count++
		}
	}
	if count != len(layers) {
		return history
	}
	var all []ocispec.History
	at, r := 0, 0
	for _, h := range history {
		if h.EmptyLayer {
			all = append(all, h)
			continue
		}
		run := runs[r]
		if at < run.last {
			h.EmptyLayer = true
			h.Comment = withNote(h.Comment, fmt.Sprintf("layer %s was joined with the next ones", layers[at].Digest))
			all = append(all, h)
			at++
			continue
		}
		for i := range run.out {
			entry := h
			if note := originOf(layers, run, i); note != "" {
				entry.Comment = withNote(h.Comment, note)
			}
			all = append(all, entry)
		}
		at++
		r++
	}
	return all
}

func withNote(comment, note string) string {
	note = "wangell image convert: " + note
	if comment == "" {
		return note
	}
	return comment + "; " + note
}

// originOf describes the layers of the source from which a piece of a run comes.
func originOf(layers []layer, r run, piece int) string {
	from := "layer " + layers[r.first].Digest.String()
	if r.first != r.last {
		from = fmt.Sprintf("layers %s to %s", layers[r.first].Digest, layers[r.last].Digest)
	} else if len(r.out) == 1 {
		return ""
	}
	if len(r.out) == 1 {
		return from
	}
	return fmt.Sprintf("piece %d of %d of %s", piece+1, len(r.out), from)
}
