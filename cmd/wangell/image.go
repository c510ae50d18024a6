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

	"wangell.loutres.me/internal/images/image"
)

func newImage(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Build, pull, load, list, remove, analyse, convert and optimise images without Docker",
		GroupID: groupRun,
		Example: `  wangell image build hello --out hello.tar
  sudo wangell image load hello.tar
  sudo wangell image pull docker.io/library/redis:8
  sudo wangell image ls
  sudo wangell image analyse hello.tar
  wangell image convert --layers split=64MB --compression zstd hello.tar hello-split.tar`,
		Args: onlySubcommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImageBuild(), newImagePull(g), newImageLoad(g), newImageList(g), newImageRemove(g),
		newImageAnalyse(), newImageConvert(), newImageOptimise(g))
	return cmd
}

// imageBuild holds the flags of image build.
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
		Short: "Build an image from files and folders",
		Long: `Build an image with one layer and write it as a tarball, in the format of docker save.
The same content always gives the same image. The argument hello stands for the hello
server of the demo, which is compiled with the Go toolchain in $PATH.`,
		Example: `  wangell image build hello --out hello.tar
  wangell image build --tag local/api:v1 --file ./api=/api --entrypoint /api --out api.tar
  wangell image build --tag local/web:v1 --base ./rootfs --entrypoint /usr/sbin/nginx --out web.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] != "hello" {
				return fmt.Errorf("unexpected argument %q: want hello or nothing", args[len(args)-1])
			}
			return nil
		},
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
	f.StringArrayVar(&b.spec.Entrypoint, "entrypoint", nil,
		"program that a container runs, then its first arguments (repeatable)")
	f.StringArrayVar(&b.spec.Cmd, "cmd", nil, "further argument, replaced by args of a manifest (repeatable)")
	f.StringArrayVar(&b.spec.Env, "env", nil, "environment variable, as NAME=VALUE (repeatable)")
	f.StringArrayVar(&b.spec.ExposedPorts, "expose", nil, "port to record in the image, such as 8080/tcp (repeatable)")
	f.StringVar(&b.spec.User, "user", "", "user of the program, as UID, UID:GID or a name in the image")
	f.StringVar(&b.spec.WorkingDir, "workdir", "", "working directory of the program")
	f.StringVar(&b.spec.StopSignal, "stop-signal", "", "signal that stops the program (default SIGTERM)")
	return cmd
}

// hello builds the hello image.
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

// readFile reads a regular file with its permissions. In the image it belongs to root.
func readFile(name string) (image.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return image.File{}, err
	}
	if !info.Mode().IsRegular() {
		return image.File{}, fmt.Errorf("%s is not a regular file: use --base for folders", name)
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
