// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestDocumentListsLinkedModules(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := writePage(t)
	write := func() []byte {
		var out bytes.Buffer
		if err := run(&out, "sbom", "v1.2.3+gabc", time.Unix(1750000000, 0).UTC(), self, p); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	first := write()
	if !bytes.Equal(first, write()) {
		t.Error("two documents of one program differ")
	}
	var d document
	if err := json.Unmarshal(first, &d); err != nil {
		t.Fatal(err)
	}
	if d.BOMFormat != "CycloneDX" || d.SpecVersion != "1.6" || d.Metadata.Timestamp != "2025-06-15T15:06:40Z" {
		t.Errorf("head of the document: %+v", d)
	}
	serial := regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if !serial.MatchString(d.SerialNumber) {
		t.Errorf("serial number %s", d.SerialNumber)
	}
	if len(d.Components) == 0 || d.Components[0].Name != "std" || !strings.HasPrefix(d.Components[0].Version, "go1.") {
		t.Errorf("components %+v", d.Components)
	}
	if len(d.Dependencies) != len(d.Components)+1 || len(d.Dependencies[0].DependsOn) != len(d.Components) {
		t.Errorf("dependencies %+v", d.Dependencies)
	}
	if len(d.Metadata.Component.Hashes) != 1 || len(d.Metadata.Component.Hashes[0].Content) != 64 {
		t.Errorf("program %+v", d.Metadata.Component)
	}
}

// writePage writes a page's script and lock file.
func writePage(t *testing.T) page {
	t.Helper()
	dir := t.TempDir()
	sum := base64.StdEncoding.EncodeToString(make([]byte, 64))
	for name, text := range map[string]string{
		"app.js": "/* a script that no program embeds: " + t.Name() + t.TempDir() + " */",
		"package-lock.json": `{"packages": {"": {"dependencies": {"@a/b": "1.2.3"}},
			"node_modules/@a/b": {"version": "1.2.3", "license": "MIT", "integrity": "sha512-` + sum + `"},
			"node_modules/builder": {"version": "9.0.0", "license": "MIT", "dev": true}}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return page{filepath.Join(dir, "app.js"), dir}
}

func TestEmbeddedPageBringsItsPackages(t *testing.T) {
	p := writePage(t)
	script, err := os.ReadFile(p.script)
	if err != nil {
		t.Fatal(err)
	}
	list, err := p.components(append([]byte("program"), script...))
	if err != nil || len(list) != 1 || list[0].PURL != "pkg:npm/%40a/b@1.2.3" || list[0].Licenses[0].Expression != "MIT" ||
		list[0].Hashes[0].Content != strings.Repeat("0", 128) {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := p.components([]byte("program")); err != nil || list != nil {
		t.Errorf("a program without the page: %+v, %v", list, err)
	}
}

func TestPackageURL(t *testing.T) {
	const want = "pkg:golang/github.com/masterminds/semver/v3@v3.5.0%2Bincompatible"
	if got := purl("github.com/Masterminds/semver/v3", "v3.5.0+incompatible"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
