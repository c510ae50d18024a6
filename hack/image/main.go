// SPDX-License-Identifier: Apache-2.0

// Command image builds Wangell's own container image for several platforms, without Docker, and writes it as a tarball
// of an OCI image layout or pushes it to a registry. The same sources give the same image.
//
//	go run ./hack/image --version v0.3.0 --name registry.example.com/wangell --out bin/wangell-image.tar
//	go run ./hack/image --version v0.3.0 --name localhost:5000/wangell --push --plain-http
package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wangell.loutres.me/internal/images/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	version, ldflags, name, platforms, out string
	programs, digestFile                   string
	push, plain                            bool
}

func run(ctx context.Context) error {
	var o options
	flag.StringVar(&o.version, "version", "",
		"version of the program; without build metadata the tag, unless --name has one (required)")
	flag.StringVar(&o.ldflags, "ldflags", "-s -w", "flags for the Go linker")
	flag.StringVar(&o.name, "name", "",
		"name of the image with its registry: REGISTRY/NAME or REGISTRY/NAME:TAG (required)")
	flag.StringVar(&o.platforms, "platforms", "linux/amd64,linux/arm64", "platforms to build for")
	flag.StringVar(&o.out, "out", "", "tarball to write")
	flag.BoolVar(&o.push, "push", false, "push the image to the registry in its name")
	flag.BoolVar(&o.plain, "plain-http", false, "push over HTTP instead of HTTPS")
	flag.StringVar(&o.programs, "programs", "", "folder with programs that are built already, as PROGRAM-OS-ARCHITECTURE")
	flag.StringVar(&o.digestFile, "digest-file", "", "file to write the digest of the image to")
	flag.Parse()
	if o.version == "" || o.name == "" || flag.NArg() > 0 || o.out == "" && !o.push {
		return fmt.Errorf("usage: image --version VERSION --name REGISTRY/NAME[:TAG] (--out FILE | --push)")
	}
	tag := tagged(o.name, o.version)
	index, err := build(ctx, o)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if o.digestFile != "" {
		if err := os.WriteFile(o.digestFile, []byte(digest.String()+"\n"), 0o644); err != nil {
			return err
		}
	}
	if o.out != "" {
		if err := image.WriteLayout(o.out, tag, index); err != nil {
			return err
		}
		fmt.Printf("%s (%s) → %s\n", tag, o.platforms, filepath.Clean(o.out))
	}
	if o.push {
		pushed, err := image.Push(ctx, tag, index, o.plain)
		if err != nil {
			return err
		}
		fmt.Printf("%s (%s) → %s\n", tag, o.platforms, pushed)
	}
	return nil
}

// tagged returns name with a tag: its own, or else the version without build metadata, which is the tag that the chart
// asks for by default. A colon before the last slash belongs to the registry's port.
func tagged(name, version string) string {
	if strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		return name
	}
	release, _, _ := strings.Cut(version, "+")
	return name + ":" + release
}

// build compiles the programs and makes the image for each platform.
func build(ctx context.Context, o options) (v1.ImageIndex, error) {
	dir, err := os.MkdirTemp("", "wangell-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var images []v1.Image
	for _, platform := range strings.Split(o.platforms, ",") {
		programs := map[string][]byte{}
		for _, name := range []string{"wangell", "wangell-snapshotter"} {
			if programs[name], err = o.program(ctx, dir, name, platform); err != nil {
				return nil, fmt.Errorf("%s for %s: %w", name, platform, err)
			}
		}
		img, err := image.Build(spec(platform, programs))
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return image.Index(map[string]string{
		"org.opencontainers.image.title":       "wangell",
		"org.opencontainers.image.description": "Scales any TCP service to zero and wakes it on its first packet",
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}, images...)
}

const passwd = `root:x:0:0:root:/:/sbin/nologin
nonroot:x:65532:65532:nonroot:/:/sbin/nologin
`

// spec describes the image: the programs, and the few files that programs expect of a distribution. The image's user
// has no rights; the daemon and the snapshotter get theirs from their pods.
func spec(platform string, programs map[string][]byte) image.Spec {
	return image.Spec{
		Platform: platform,
		Files: map[string]image.File{
			"/usr/bin/wangell":             {Data: programs["wangell"], Mode: 0o755},
			"/usr/bin/wangell-snapshotter": {Data: programs["wangell-snapshotter"], Mode: 0o755},
			"/etc/passwd":                  {Data: []byte(passwd)},
			"/etc/group":                   {Data: []byte("root:x:0:\nnonroot:x:65532:\n")},
			"/tmp":                         {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			"/run":                         {Mode: fs.ModeDir | 0o755},
			// Container runtimes report network namespaces below /var/run/netns, which is /run/netns.
			"/var/run": {Mode: fs.ModeSymlink | 0o777, Link: "/run"},
		},
		Entrypoint:   []string{"/usr/bin/wangell"},
		User:         "65532:65532",
		ExposedPorts: []string{"7946/udp", "7947/udp"},
	}
}

// program returns a program for a platform, built already or compiled now.
func (o options) program(ctx context.Context, dir, program, platform string) ([]byte, error) {
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, err
	}
	name := program + "-" + p.OS + "-" + p.Architecture
	if o.programs != "" {
		return os.ReadFile(filepath.Join(o.programs, name))
	}
	out := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags", o.ldflags, "-o", out, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+p.OS, "GOARCH="+p.Architecture)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
