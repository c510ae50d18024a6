// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// archive writes an archive with files, and returns its path.
func archive(t *testing.T, name string, files ...string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f, Mode: 0o755, Size: 1, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestManifestNamesEachArchive(t *testing.T) {
	a := archive(t, "kubectl-wangell_0.3.0_linux_amd64.tar.gz", "./kubectl-wangell", "./LICENSE")
	b := archive(t, "kubectl-wangell_0.3.0_darwin_arm64.tar.gz", "kubectl-wangell", "LICENSE")
	var out bytes.Buffer
	if err := run(&out, "v0.3.0", "https://example.org/v0.3.0/", []string{a, b}); err != nil {
		t.Fatal(err)
	}
	var p plugin
	if err := yaml.UnmarshalStrict(out.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Spec.Platforms) != 2 || p.Spec.Version != "v0.3.0" {
		t.Fatalf("%s", &out)
	}
	content, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	one := p.Spec.Platforms[0]
	if one.SHA256 != fmt.Sprintf("%x", sha256.Sum256(content)) || len(one.Files) != 2 || one.Bin != program ||
		one.URI != "https://example.org/v0.3.0/kubectl-wangell_0.3.0_linux_amd64.tar.gz" {
		t.Errorf("%+v", one)
	}
	if l := p.Spec.Platforms[1].Selector.MatchLabels; l["os"] != "darwin" || l["arch"] != "arm64" {
		t.Errorf("%v", l)
	}
}

func TestArchivesThatKrewCannotUseAreRefused(t *testing.T) {
	for name, e := range map[string]struct {
		file  string
		files []string
		want  string
	}{
		"no licence":      {"kubectl-wangell_0.3.0_linux_amd64.tar.gz", []string{program}, "must have"},
		"no program":      {"kubectl-wangell_0.3.0_linux_amd64.tar.gz", []string{"LICENSE"}, "must have"},
		"another version": {"kubectl-wangell_0.2.0_linux_amd64.tar.gz", []string{program, "LICENSE"}, "want the name"},
		"no platform":     {"kubectl-wangell_0.3.0_linux.tar.gz", []string{program, "LICENSE"}, "want the name"},
	} {
		err := run(&bytes.Buffer{}, "v0.3.0", "https://example.org", []string{archive(t, e.file, e.files...)})
		if err == nil || !strings.Contains(err.Error(), e.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
