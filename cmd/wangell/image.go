// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/image"
)

func newImage(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Build, load and list images, without Docker and without a registry",
		GroupID: groupRun,
		Example: `  wangell image build hello --out hello.tar
  sudo wangell image load hello.tar
  sudo wangell image ls`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImageBuild(), newImageLoad(g), newImageList(g))
	return cmd
}

// imageBuild has the flags of image build.
type imageBuild struct {
	spec  image.Spec
	files []string
	tag   string
	out   string
}

func newImageBuild() *cobra.Command {
	b := &imageBuild{}
	cmd := &cobra.Command{
		Use:   "build [hello] --out FILE",
		Short: "Build an image of files and folders into a tarball",
		Long: `Build makes an image of one layer and writes it as a tarball, as docker save does.
The same content gives the same image. The word hello stands for the hello server
of the demo, which is compiled with the Go toolchain in $PATH.`,
		Example: `  wangell image build hello --out hello.tar
  wangell image build --tag local/api:v1 --file ./api=/api --entrypoint /api --out api.tar
  wangell image build --tag local/web:v1 --base ./rootfs --entrypoint /usr/sbin/nginx --cmd -g --cmd 'daemon off;' --out web.tar`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"hello"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.out == "" {
				return usage(cmd, "--out is missing: name the tarball to write")
			}
			if len(args) == 1 {
				return b.hello(cmd.Context())
			}
			return b.build(cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.out, "out", "", "tarball to write (required)")
	f.StringVar(&b.tag, "tag", "", "name of the image, such as local/api:v1")
	f.StringVar(&b.spec.Base, "base", "", "folder that becomes the root of the image's file system")
	f.StringArrayVar(&b.files, "file", nil, "file to add, as HERE=/IN/THE/IMAGE (repeatable)")
	f.StringArrayVar(&b.spec.Entrypoint, "entrypoint", nil, "program that a container runs, and its first arguments (repeatable)")
	f.StringArrayVar(&b.spec.Cmd, "cmd", nil, "further argument, which a manifest's args replace (repeatable)")
	f.StringArrayVar(&b.spec.Env, "env", nil, "environment variable, as NAME=VALUE (repeatable)")
	f.StringArrayVar(&b.spec.ExposedPorts, "expose", nil, "port to note in the image, such as 8080/tcp (repeatable)")
	f.StringVar(&b.spec.User, "user", "", "user of the program, as UID, UID:GID or a name in the image")
	f.StringVar(&b.spec.WorkingDir, "workdir", "", "folder in which the program starts")
	f.StringVar(&b.spec.StopSignal, "stop-signal", "", "signal that asks the program to end (default SIGTERM)")
	return cmd
}

// hello builds the image of the demo.
func (b *imageBuild) hello(ctx context.Context) error {
	img, err := image.Hello(ctx)
	if err != nil {
		return err
	}
	if b.tag == "" {
		b.tag = image.HelloTag
	}
	return b.write(img)
}

func (b *imageBuild) build(cmd *cobra.Command) error {
	if b.tag == "" {
		return usage(cmd, "--tag is missing: name the image")
	}
	b.spec.Files = map[string]image.File{}
	for _, f := range b.files {
		here, there, ok := strings.Cut(f, "=")
		if !ok || here == "" || !path.IsAbs(there) {
			return usage(cmd, "--file %q: want HERE=/IN/THE/IMAGE", f)
		}
		file, err := readFile(here)
		if err != nil {
			return fmt.Errorf("--file %s: %w", f, err)
		}
		b.spec.Files[there] = file
	}
	img, err := image.Build(b.spec)
	if err != nil {
		return fmt.Errorf("build image %s: %w", b.tag, err)
	}
	return b.write(img)
}

// readFile reads a regular file with its permissions; its owner in the image is root.
func readFile(name string) (image.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return image.File{}, err
	}
	if !info.Mode().IsRegular() {
		return image.File{}, fmt.Errorf("%s is not a regular file: give folders with --base", name)
	}
	data, err := os.ReadFile(name)
	return image.File{Data: data, Mode: info.Mode() & (fs.ModePerm | fs.ModeSetuid)}, err
}

func (b *imageBuild) write(img v1.Image) error {
	if err := image.WriteFile(b.out, b.tag, img); err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("digest of image %s: %w", b.tag, err)
	}
	fmt.Printf("%s %s → %s\n", b.tag, digest, filepath.Clean(b.out))
	return nil
}
