// SPDX-License-Identifier: Apache-2.0

// Command sbom writes the software bill of materials of a Go program as CycloneDX 1.6 JSON
// (https://cyclonedx.org/docs/1.6/json/). It reads what the linker recorded in the program, so it lists exactly the
// modules that are linked, for any target platform, and the npm packages of the page that the program embeds, if it
// does. The same program gives the same document.
//
//	go run ./hack/sbom --name wangell --version v0.3.0 --time 1750000000 \
//	    --page internal/show/dashboard/assets/app.js --page-source ui bin/wangell
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

func main() {
	name := flag.String("name", "", "name of the program (required)")
	version := flag.String("version", "", "version of the program (required)")
	seconds := flag.Int64("time", 0, "time of the document, in seconds since 1970")
	var p page
	flag.StringVar(&p.script, "page", "", "built script of a page that the program may embed (required)")
	flag.StringVar(&p.folder, "page-source", "", "folder of that page's npm package (required)")
	flag.Parse()
	if *name == "" || *version == "" || p.script == "" || p.folder == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: sbom --name NAME --version VERSION --page FILE --page-source FOLDER "+
			"[--time SECONDS] PROGRAM")
		os.Exit(2)
	}
	if err := run(os.Stdout, *name, *version, time.Unix(*seconds, 0).UTC(), flag.Arg(0), p); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(w io.Writer, name, version string, at time.Time, file string, p page) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	embedded, err := p.components(content)
	if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(newDocument(name, version, at, info, sha256.Sum256(content), embedded))
}

// document is the part of a CycloneDX BOM that is used here.
type document struct {
	Schema       string       `json:"$schema"`
	BOMFormat    string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	SerialNumber string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string     `json:"timestamp"`
	Component component  `json:"component"`
	Property  []property `json:"properties"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// newDocument lists the modules of a program with the given SHA-256, and the components that it embeds. The standard
// library is the module "std".
func newDocument(
	name, version string, at time.Time, info *debug.BuildInfo, sum [sha256.Size]byte, embedded []component,
) document {
	program := component{
		Type: "application", Name: name, Version: version,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}, Licenses: []license{{"Apache-2.0"}},
		PURL: purl(info.Main.Path, version),
	}
	program.Ref = program.PURL
	if _, sub, ok := strings.Cut(info.Path, info.Main.Path+"/"); ok {
		program.PURL += "#" + sub
		program.Ref = program.PURL
	}
	goVersion, _, _ := strings.Cut(info.GoVersion, " ")
	std := component{
		Type: "library", Name: "std", Version: goVersion, Scope: "required",
		PURL: purl("std", strings.TrimPrefix(goVersion, "go")),
	}
	std.Ref = std.PURL
	d := document{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", BOMFormat: "CycloneDX", SpecVersion: "1.6",
		SerialNumber: "urn:uuid:" + uuid(sum), Version: 1,
		Metadata:   metadata{Timestamp: at.Format(time.RFC3339), Component: program},
		Components: []component{std},
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "CGO_ENABLED":
			d.Metadata.Property = append(d.Metadata.Property, property{"wangell:build:" + s.Key, s.Value})
		}
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := component{Type: "library", Name: m.Path, Version: m.Version, Scope: "required", PURL: purl(m.Path, m.Version)}
		c.Ref = c.PURL
		if m.Sum != "" {
			// The hash of go.sum, which is not one of the module's archive: https://go.dev/ref/mod#go-sum-files.
			c.Properties = []property{{"go:sum", m.Sum}}
		}
		d.Components = append(d.Components, c)
	}
	d.Components = append(d.Components, embedded...)
	root := dependency{Ref: program.Ref}
	for _, c := range d.Components {
		root.DependsOn = append(root.DependsOn, c.Ref)
	}
	d.Dependencies = append(d.Dependencies, root)
	for _, c := range d.Components {
		d.Dependencies = append(d.Dependencies, dependency{Ref: c.Ref})
	}
	return d
}

// purl is the package URL of a Go module: https://github.com/package-url/purl-spec.
func purl(module, version string) string {
	return "pkg:golang/" + strings.ToLower(module) + "@" + url.QueryEscape(version)
}

// uuid derives a UUID of version 8 (RFC 9562) from a hash, so that the document of a program is always the same.
func uuid(sum [sha256.Size]byte) string {
	u := sum[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
