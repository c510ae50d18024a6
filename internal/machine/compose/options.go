// SPDX-License-Identifier: Apache-2.0

package compose

import "strings"

// Options are the parameters of Load and Translate.
type Options struct {
	// Files are Compose files; later ones override earlier ones, and - is standard input. Default: the compose.yaml
	// of the working folder or a folder above.
	Files []string
	// EnvFiles are the files with variables for interpolation. Default: .env beside the first file.
	EnvFiles []string
	// Env are further variables, NAME=VALUE, which win.
	Env []string
	// Profiles are the profiles to enable; * enables all.
	Profiles []string
	// Namespace is the namespace of the services.
	Namespace string
}

// Note describes something that was not translated, or was assumed.
type Note struct {
	// Service is the name in the Compose file; empty for the file itself.
	Service string `json:"service,omitempty"`
	// Field is the field of the Compose file; empty for the service as a whole.
	Field string `json:"field"`
	// Text says what happens instead, and what to do.
	Text string `json:"text"`
	// Lost is set if the field was not translated, as opposed to translated with an assumption.
	Lost bool `json:"lost"`
}

// String returns the note as a line.
func (n Note) String() string {
	where := n.Field
	if n.Service != "" {
		where = strings.TrimSuffix("services."+n.Service+"."+n.Field, ".")
	}
	return where + ": " + n.Text
}
