// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/commands"
	"wangell.loutres.me/internal/status"
)

func newImagePull(g *globals) *cobra.Command {
	p := &places{g: g}
	var out output
	var insecure []string
	cmd := &cobra.Command{
		Use:   "pull SERVICE|IMAGE...",
		Short: "Pull images from their registries into the instance's containerd",
		Long: `Pull images, or the images of services, with the credentials of docker login. An image that is
here already is compared with its registry, and replaced if its tag has moved: services use
the new one from their next wake on. The instance need not run.`,
		Example: `  sudo wangell image pull docker.io/library/redis:8
  sudo wangell image pull web api
  sudo wangell image pull 10.0.0.5:5000/api:v1 --insecure-registry 10.0.0.5:5000 -o json`,
		Args: someImages,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) (
			[]cobra.Completion, cobra.ShellCompDirective) {
			services, directive := g.place().CompleteServices(cmd, args, typed)
			return append(services, p.completeImages(cmd, args)...), directive
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var refs []string
			for _, arg := range args {
				of, err := imagesOfArgument(cmd.Context(), g, arg)
				if err != nil {
					return err
				}
				refs = append(refs, of...)
			}
			return p.withImages(cmd, func(ctx context.Context, c *client.Client, snapshotter string) error {
				pulled, err := pullImages(ctx, c, snapshotter, refs, insecure)
				if out == cli.OutputJSON {
					return errors.Join(cli.PrintJSON(pulled), err)
				}
				for _, i := range pulled {
					fmt.Println("pulled", i.Name, i.Digest)
				}
				return err
			})
		},
	}
	p.register(cmd)
	cmd.Flags().StringArrayVar(&insecure, "insecure-registry", nil,
		"registry to use over plain HTTP, as HOST, HOST:PORT or IP/BITS (repeatable)")
	out.RegisterTo(cmd)
	return cmd
}

// someImages demands at least one argument.
func someImages(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("name an image, or a service")
	}
	return nil
}

// pullImages pulls images in turn, up to the first that fails.
func pullImages(ctx context.Context, c *client.Client, snapshotter string, refs, insecure []string) (
	[]containerd.Pulled, error) {
	report, stop := showProgress()
	defer stop()
	pulled := []containerd.Pulled{}
	for _, ref := range refs {
		got, err := containerd.Pull(ctx, c, snapshotter, ref, insecure, func(done, total int64) {
			report(live.StagePull, done, total)
		})
		if err != nil {
			return pulled, fmt.Errorf("image %q: %w", ref, err)
		}
		pulled = append(pulled, got)
	}
	return pulled, nil
}

func newImageRemove(g *globals) *cobra.Command {
	p := &places{g: g}
	var force bool
	cmd := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove images from the instance's containerd",
		Long: `Remove images, and layers that no other image has, from the disk. An image that a service of the
running instance has, or a container uses, stays unless --force is given: the service's next
wake then pulls it again. The instance need not run.`,
		Example: `  sudo wangell image rm docker.io/library/redis:7
  sudo wangell image rm --force local/api:v1`,
		Args: someImages,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (
			[]cobra.Completion, cobra.ShellCompDirective) {
			return p.completeImages(cmd, args), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var services []status.Status
			if !force {
				var err error
				if services, err = g.servicesIfRunning(cmd.Context()); err != nil {
					return err
				}
			}
			return p.withContainerd(cmd, func(ctx context.Context, c *client.Client) error {
				names, err := imagesToRemove(ctx, c, args, services, force)
				if err != nil {
					return err
				}
				for _, n := range names {
					if err := c.ImageService().Delete(ctx, n, images.SynchronousDelete()); err != nil {
						return fmt.Errorf("remove image %q: %w", n, err)
					}
					fmt.Println("removed", n)
				}
				return nil
			})
		},
	}
	p.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove images that are in use as well")
	return cmd
}

// completeImages completes names of images that are no arguments yet. There are none unless the instance runs, as a
// containerd that has to be started takes too long.
func (p *places) completeImages(cmd *cobra.Command, args []string) (names []cobra.Completion) {
	c := p.g.client()
	defer c.Close()
	if c.Healthy(cmd.Context()) != nil {
		return nil
	}
	_ = p.withContainerd(cmd, func(ctx context.Context, c *client.Client) error { // no completion is no error
		list, err := c.ImageService().List(ctx)
		for _, i := range list {
			if !slices.Contains(args, i.Name) {
				names = append(names, i.Name)
			}
		}
		return err
	})
	return names
}

// imagesToRemove returns the full names of images, all of which may be removed, so that a mistake removes none.
func imagesToRemove(ctx context.Context, c *client.Client, refs []string, services []status.Status,
	force bool) ([]string, error) {
	containers, err := c.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var names []string
	for _, ref := range refs {
		name, err := containerd.FullName(ref)
		if err != nil {
			return nil, fmt.Errorf("image %q: %w", ref, err)
		}
		if _, err := c.ImageService().Get(ctx, name); errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("image %q: not on this machine: see wangell image ls", ref)
		} else if err != nil {
			return nil, fmt.Errorf("image %q: %w", ref, err)
		}
		if user := userOf(name, services); user != "" {
			return nil, fmt.Errorf("image %q: service %s has it: remove the service first, or give --force", ref, user)
		}
		for _, ct := range containers {
			if ct.Image == name && !force {
				return nil, fmt.Errorf("image %q: container %s uses it: put its service to sleep first, or give --force", ref,
					ct.ID)
			}
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// userOf returns a service with an image, as NAMESPACE/NAME; empty if there is none.
func userOf(name string, services []status.Status) string {
	for _, s := range services {
		for _, i := range s.Service.Spec.Images() {
			if full, err := containerd.FullName(i.Ref); err == nil && full == name {
				return s.Service.Namespace + "/" + s.Service.Name
			}
		}
	}
	return ""
}

// imagesOfArgument returns the images of a service of the instance, the main container's first, or the argument if it
// can only be an image.
func imagesOfArgument(ctx context.Context, g *globals, arg string) ([]string, error) {
	c := g.client()
	defer c.Close()
	services, err := c.Status(ctx)
	if err != nil {
		services = nil
	}
	images, known := imagesOf(services, arg)
	switch {
	case known && len(images) == 0:
		return nil, fmt.Errorf("service %q: it has no image: name one of its revisions", arg)
	case known:
		return images, nil
	case strings.ContainsAny(arg, ":@."):
		return []string{arg}, nil
	case err != nil:
		return nil, fmt.Errorf("service %q: %w; or name an image, with its tag", arg, err)
	}
	return nil, fmt.Errorf("service %q: not found: see wangell ps, or name an image, with its tag", arg)
}

// imagesOf returns the images of a service, the main container's first.
func imagesOf(services []status.Status, name string) (images []string, ok bool) {
	s, err := commands.Named(services, name)
	if err != nil {
		return nil, false
	}
	for _, i := range s.Service.Spec.Images() {
		if !slices.Contains(images, i.Ref) {
			images = append(images, i.Ref)
		}
	}
	return images, true
}
