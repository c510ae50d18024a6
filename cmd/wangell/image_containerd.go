// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/instance"
)

// places are the flags that name the folders and the containerd of an instance.
type places struct {
	g          *globals
	stateDir   string
	containerd string
}

func (p *places) register(f *pflag.FlagSet) {
	f.StringVar(&p.stateDir, "state-dir", instance.DefaultStateDir, "folder of images, logs and an own containerd's data")
	f.StringVar(&p.containerd, "containerd", instance.ContainerdAuto, "auto (the machine's if it answers, else own), own, or the path of a socket")
}

// config returns the configuration with the defaults of what the flags do not name.
func (p *places) config() instance.Config {
	return instance.Config{
		RunDir: p.g.runDir, StateDir: p.stateDir, Containerd: p.containerd, XDPMode: "auto",
		Addresses: instance.DefaultAddresses, PodAddresses: instance.DefaultPodAddresses,
	}
}

// with calls f with the containerd of the instance.
func (p *places) with(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	log, err := p.g.logger(cmd, os.Stderr)
	if err != nil {
		return err
	}
	return instance.WithContainerd(cmd.Context(), p.config(), log, func(c *client.Client) error {
		return f(cmd.Context(), c)
	})
}

func newImageLoad(g *globals) *cobra.Command {
	p := &places{g: g}
	cmd := &cobra.Command{
		Use:   "load FILE...",
		Short: "Bring the images of tarballs into the instance's containerd",
		Long: `Load reads tarballs of image build, docker save or an OCI layout; - is standard input.
The instance need not run.`,
		Example: `  sudo wangell image load hello.tar
  docker save nginx:1.28 | sudo wangell image load -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd, func(ctx context.Context, c *client.Client) error {
				for _, name := range args {
					if err := loadImages(ctx, c, name); err != nil {
						return fmt.Errorf("load %s: %w", name, err)
					}
				}
				return nil
			})
		},
	}
	p.register(cmd.Flags())
	return cmd
}

// loadImages imports one tarball and prints the names of its images.
func loadImages(ctx context.Context, c *client.Client, name string) error {
	var from io.Reader = os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	names, err := image.Import(ctx, c, from)
	for _, n := range names {
		fmt.Println("loaded", n)
	}
	return err
}

// imageLine is a line of image ls.
type imageLine struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"` // bytes, as stored: layers may be compressed
	Updated time.Time `json:"updated"`
}

func newImageList(g *globals) *cobra.Command {
	p := &places{g: g}
	var out output
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the images in the instance's containerd",
		Example: `  sudo wangell image ls
  sudo wangell image ls -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd, func(ctx context.Context, c *client.Client) error {
				lines, err := listImages(ctx, c)
				if err != nil {
					return err
				}
				if out == outputJSON {
					return printJSON(lines)
				}
				return printImages(lines)
			})
		},
	}
	p.register(cmd.Flags())
	out.register(cmd.Flags())
	return cmd
}

func listImages(ctx context.Context, c *client.Client) ([]imageLine, error) {
	list, err := c.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	lines := []imageLine{}
	for _, i := range list {
		size, err := i.Size(ctx)
		if err != nil {
			// An image of which a part is missing is still worth a line.
			slog.Warn("size of an image", "image", i.Name(), "error", err)
		}
		lines = append(lines, imageLine{i.Name(), i.Target().Digest.String(), size, i.Metadata().UpdatedAt})
	}
	slices.SortFunc(lines, func(a, b imageLine) int { return cmp.Compare(a.Name, b.Name) })
	return lines, nil
}

func printImages(lines []imageLine) error {
	t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tDIGEST\tSIZE\tUPDATED")
	for _, l := range lines {
		digest := l.Digest
		if len(digest) > len("sha256:")+12 {
			digest = digest[:len("sha256:")+12]
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f MB\t%s\n", l.Name, digest, float64(l.Size)/1e6, l.Updated.Local().Format(time.DateTime))
	}
	return t.Flush()
}
