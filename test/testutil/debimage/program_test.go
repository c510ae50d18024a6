// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestProgramsOfPackagesKeepModesAndLinks(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "usr/bin/run", Mode: 0o755, Size: 3},
		{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin"},
		{Typeflag: tar.TypeSymlink, Name: "abs", Linkname: "/usr/bin/run"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			fmt.Fprint(w, "run")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "root")
	if err := unpackAll(&archive, root); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr/bin/run", "bin/run", "abs"} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.Mode().Perm() != fs.FileMode(0o755) || info.Size() != 3 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
