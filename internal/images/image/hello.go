// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	_ "embed" // for helloSource
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// HelloTag is the reference of the hello image.
const HelloTag = "wangell.local/hello:v1"

//go:embed hello/main.go
var helloSource []byte

// Hello builds the image of the hello server, whose source is in folder hello. The server runs as user 65532. See
// Program for what it needs.
func Hello(ctx context.Context) (v1.Image, error) {
	return Program(ctx, helloSource, Spec{ExposedPorts: []string{"8080/tcp"}, User: "65532:65532"})
}

// Program compiles a Go file of package main that imports only the standard library, with the Go toolchain in $PATH,
// and builds an image from spec that also contains the static program as its entrypoint. It needs no network.
func Program(ctx context.Context, source []byte, spec Spec) (v1.Image, error) {
	binary, err := compile(ctx, source)
	if err != nil {
		return nil, fmt.Errorf("compile program with the Go toolchain in $PATH: %w", err)
	}
	files := map[string]File{"/program": {Data: binary, Mode: 0o755}}
	maps.Copy(files, spec.Files)
	spec.Files, spec.Entrypoint = files, []string{"/program"}
	return Build(spec)
}

func compile(ctx context.Context, source []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "wangell-program-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "program")
	for file, data := range map[string][]byte{"go.mod": []byte("module program\n\ngo 1.24\n"), "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false",
		"-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	return os.ReadFile(out)
}
