// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"wangell.loutres.me/internal/machine/egress"
	"wangell.loutres.me/internal/machine/zram"
	"wangell.loutres.me/internal/node"
	"wangell.loutres.me/internal/runtime/containerd"
)

// destroyTimeout bounds the removal of pods that are killed, as containerd may hang.
const destroyTimeout = time.Minute

// runtimeConfig is the part of the configuration that the runtime needs.
func (c Config) runtimeConfig(log *slog.Logger) containerd.Config {
	return containerd.Config{
		Containerd: c.Containerd, StateDir: c.StateDir, RunDir: c.RunDir, PodAddresses: c.PodAddresses,
		Snapshotter: c.Snapshotter, InsecureRegistries: c.InsecureRegistries, Optimise: c.optimise, Log: log,
	}
}

// egress is the part of the configuration for package egress.
func (c Config) egress(log *slog.Logger) egress.Config {
	r := c.runtimeConfig(log)
	return egress.Config{
		Pods: c.PodAddresses, Services: c.Addresses, DevicePrefix: r.DevicePrefix(), FormerPrefix: r.FormerDevicePrefix(),
		Log: log,
	}
}

// destroy removes what a killed instance left.
func destroy(ctx context.Context, c Config) error {
	config := c.runtimeConfig(slog.Default())
	config.Snapshotter = "" // not checked: a missing snapshotter must not prevent the rest
	r, err := containerd.New(ctx, config)
	if err == nil {
		err = destroyRuntime(r)
	}
	return errors.Join(err, zram.Remove(c.zramFile()), removeGate(c), egress.Remove(c.egress(slog.Default())))
}

// destroyRuntime removes all pods, and everything that the runtime made on this machine.
func destroyRuntime(r *containerd.Runtime) error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := r.Destroy(ctx); err != nil {
		return fmt.Errorf("remove what was running: %w", err)
	}
	return nil
}

// removeGate removes the gate of the instance and its devices.
func removeGate(c Config) error {
	if err := node.Clean(c.RunDir, "", ""); err != nil {
		return fmt.Errorf("remove the gate: %w", err)
	}
	return nil
}
