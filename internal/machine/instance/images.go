// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/containerd/containerd/v2/client"

	"wangell.loutres.me/internal/runtime/containerd"
)

// WithContainerd calls f with a client of an instance's containerd, in the namespace of the instance's images, and the
// name of the snapshotter that unpacks them. If the instance runs, these are the ones that it uses; otherwise the
// containerd of c, which is started for the duration of f if it is an own one, and the last snapshotter.
func WithContainerd(ctx context.Context, c Config, log *slog.Logger,
	f func(c *client.Client, snapshotter string) error) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	l, err := acquire(c)
	if running := (*RunningError)(nil); errors.As(err, &running) {
		kept, found, err := load(c.RunDir)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%w: it is starting or shutting down: try again", running)
		}
		return withClient(socketOf(ctx, kept), kept.snapshotter(), f)
	}
	if err != nil {
		return err
	}
	kept, killed, err := load(c.RunDir)
	if err != nil {
		return errors.Join(err, l.release())
	}
	if killed {
		c = kept
		// Pods of the killed instance may run: its containerd stays, for the next up to adopt.
		defer func() { err = errors.Join(err, l.release()) }()
	} else {
		defer func() { err = errors.Join(err, l.remove()) }()
		if c.Snapshotter, err = LastSnapshotter(c.StateDir); err != nil {
			return err
		}
	}
	socket := socketOf(ctx, c)
	if socket != containerd.OwnSocket(c.RunDir) {
		return withClient(socket, c.snapshotter(), f)
	}
	// An instance with another run folder may have a containerd on the same state folder.
	state, err := acquireState(c)
	if err != nil {
		return err
	}
	defer state.Close()
	if err := endOrphan(c, log); err != nil {
		return err
	}
	own, err := containerd.StartOwn(ctx, containerd.OwnConfig{StateDir: c.StateDir, RunDir: c.RunDir, Log: log})
	if err != nil {
		return err
	}
	err = withClient(own.Address(), c.snapshotter(), f)
	if killed {
		own.Release()
		return err
	}
	return errors.Join(err, own.Stop())
}

// socketOf returns the socket of a configuration's containerd, by the same rules as the runtime.
func socketOf(ctx context.Context, c Config) string {
	switch c.Containerd {
	case ContainerdOwn:
	case ContainerdAuto:
		// A running own one was chosen when the machine's did not answer.
		if _, err := containerd.Dial(ctx, containerd.OwnSocket(c.RunDir)); err == nil {
			break
		}
		if _, err := containerd.Dial(ctx, containerd.SystemSocket); err == nil {
			return containerd.SystemSocket
		}
	default:
		return c.Containerd
	}
	return containerd.OwnSocket(c.RunDir)
}

// withClient calls f with a client of the containerd at a socket.
func withClient(socket, snapshotter string, f func(*client.Client, string) error) error {
	c, err := client.New(socket, client.WithDefaultNamespace(containerd.DefaultNamespace))
	if err != nil {
		return fmt.Errorf("containerd at %s: %w", socket, err)
	}
	return errors.Join(f(c, snapshotter), c.Close())
}
