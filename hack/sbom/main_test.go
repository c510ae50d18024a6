// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
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
	write := func() []byte {
		var out bytes.Buffer
		if err := run(&out, "sbom", "v1.2.3+gabc", time.Unix(1750000000, 0).UTC(), self); err != nil {
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

func TestPackageURL(t *testing.T) {
	const want = "pkg:golang/github.com/masterminds/semver/v3@v3.5.0%2Bincompatible"
	if got := purl("github.com/Masterminds/semver/v3", "v3.5.0+incompatible"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
