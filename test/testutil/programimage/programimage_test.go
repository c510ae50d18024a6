// SPDX-License-Identifier: Apache-2.0

package programimage

import (
	"os"
	"path/filepath"
	"testing"

	"wangell.loutres.me/test/testutil/need"
)

func TestProgramImageHasItsLibraries(t *testing.T) {
	// A program that is linked with the C library, as Envoy is.
	for _, program := range []string{"/bin/sh", "/usr/bin/env"} {
		if !isFile(program) {
			need.Unmet(t, "needs %s", program)
		}
		data, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(file, data, 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		if err := addLibraries(files, file); err != nil {
			t.Fatal(err)
		}
		if files["/lib/libc.so.6"] == "" {
			t.Errorf("%s: no C library: %v", program, files)
		}
		var digests [2]string
		for i := range digests {
			img, err := Build(file, "/usr/local/bin/envoy")
			if err != nil {
				t.Fatal(err)
			}
			d, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			digests[i] = d.String()
			c, err := img.ConfigFile()
			if err != nil || c.Config.Entrypoint[0] != "/usr/local/bin/envoy" || c.Config.User != user {
				t.Errorf("%+v, %v", c, err)
			}
		}
		if digests[0] != digests[1] {
			t.Error("the same program makes two images")
		}
	}
}
