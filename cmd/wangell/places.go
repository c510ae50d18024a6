// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"github.com/containerd/containerd/v2/client"
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/internal/show/cli"
)

// places holds the flags that name an instance's state folder and containerd.
type places struct {
	g          *globals
	stateDir   string
	containerd string
}

func (p *places) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.stateDir, "state-dir", instance.DefaultStateDir,
		"folder for images, logs and the data of an own containerd")
	f.StringVar(&p.containerd, "containerd", instance.ContainerdAuto,
		"auto (the machine's if it answers, otherwise own), own, or the path of a socket")
	_ = cmd.MarkFlagDirname("state-dir") // the flag exists
}

// config returns the configuration of an instance, with defaults for everything that has no flag here.
func (p *places) config() instance.Config {
	return instance.Config{
		RunDir: p.g.runDir, StateDir: p.stateDir, Containerd: p.containerd, XDPMode: "auto",
		Addresses: instance.DefaultAddresses, PodAddresses: instance.DefaultPodAddresses,
	}
}

// withContainerd calls f with a client of the instance's containerd.
func (p *places) withContainerd(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	return p.withImages(cmd, func(ctx context.Context, c *client.Client, _ string) error { return f(ctx, c) })
}

// withImages calls f with a client of the instance's containerd, and the snapshotter that unpacks its images.
func (p *places) withImages(cmd *cobra.Command,
	f func(ctx context.Context, c *client.Client, snapshotter string) error) error {
	log, err := p.g.logger(cmd, os.Stderr)
	if err != nil {
		return err
	}
	cli.OutlivePipes() // an own containerd must be stopped
	return instance.WithContainerd(cmd.Context(), p.config(), log, func(c *client.Client, snapshotter string) error {
		return f(cmd.Context(), c, snapshotter)
	})
}
