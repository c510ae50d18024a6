// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"slices"
	"testing"

	"wangell.loutres.me/internal/machine/manifest"
)

func TestUsersLearnWhyManifestsAreNotApplied(t *testing.T) {
	mistakes := manifest.Errors{{File: "a.yaml", Line: 3, Column: 1, Field: "spec.port", Message: "is missing"}}
	taken, unreadable := errors.New("port 80 is taken"), errors.New("no such folder")
	for _, c := range []struct {
		load, apply error
		want        []string
	}{
		{nil, nil, nil},
		{mistakes, nil, []string{"a.yaml"}},
		{nil, taken, []string{"-f"}},
		{mistakes, taken, []string{"-f", "a.yaml"}},
		{unreadable, nil, []string{"-f"}},
	} {
		var b brokenFiles
		b.set(c.load, c.apply)
		var files []string
		for _, f := range b.get() {
			files = append(files, f.File)
			if len(f.Errors) != 1 {
				t.Errorf("load %v, apply %v: %q", c.load, c.apply, f.Errors)
			}
		}
		if !slices.Equal(files, c.want) {
			t.Errorf("load %v, apply %v: %q, want %q", c.load, c.apply, files, c.want)
		}
	}
}
