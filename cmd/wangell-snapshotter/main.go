// SPDX-License-Identifier: Apache-2.0

// Command wangell-snapshotter is a proxy plugin of containerd by which containers start before their image is on the
// node. It is a program of its own so that daemons, which run on every node, do not carry it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/base/ownhost"
	"wangell.loutres.me/internal/images/lazy"
	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/internal/images/registryhosts"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/show/cli"
)

func main() { os.Exit(cli.Run(newRoot(), os.Args[1:])) }

func newRoot() *cobra.Command {
	c := lazy.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var hostsDir, metricsAddress, containerdAddress string
	var insecure []string
	cmd := &cobra.Command{
		Use:   "wangell-snapshotter",
		Short: "Start containers before their image is on the node",
		Long: `Wangell-snapshotter serves containerd as a proxy plugin. Layers in eStargz or zstd:chunked
are mounted by FUSE as soon as their table of contents is here: what a container reads comes
first, everything else follows. Other layers are pulled as usual.

Needs root and FUSE. It writes "ready" to standard output once it serves. When it ends,
containers that use it lose their files and have to be restarted; what was fetched stays.`,
		Example:       `  sudo wangell-snapshotter --root /var/lib/wangell/lazy --socket /run/wangell-lazy.sock`,
		Version:       buildinfo.Get().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Workers < 1 || c.Piece < 1 || c.Patience <= 0 {
				return cli.UsageError{Command: cmd.CommandPath(), Err: fmt.Errorf(
					"--workers %d, --piece %d and --patience %v: all must be above 0", c.Workers, c.Piece, c.Patience)}
			}
			ctx := cmd.Context()
			options := config.HostOptions{Credentials: containerd.Credentials}
			if hostsDir != "" {
				options.HostDir = config.HostDirFromRoot(hostsDir)
			}
			c.Hosts = hosts(ctx, options, insecure)
			var listener net.Listener // before anything is mounted: a mistake must not leave mounts
			if metricsAddress != "" {
				var err error
				if listener, err = net.Listen("tcp", metricsAddress); err != nil {
					return fmt.Errorf("metrics: %w: give another --metrics-address", err)
				}
				defer listener.Close()
			}
			var before *lost
			if containerdAddress != "" {
				var err error
				if before, err = findLost(ctx, containerdAddress, c.Log); err != nil {
					return err
				}
			}
			var failed failures.Log
			c.Failed = failed.Add
			s, err := lazy.Start(ctx, c)
			if err != nil {
				return err
			}
			told, err := lazy.Listen(failures.Socket(c.Socket))
			if err != nil {
				return errors.Join(fmt.Errorf("socket for reports of failures: %w", err), s.Close())
			}
			defer told.Close()
			serving, stop := context.WithCancel(ctx)
			defer stop()
			go func() {
				if err := failed.Serve(serving, told); err != nil {
					c.Log.Error("files that cannot be fetched are not reported", "error", err)
				}
			}()
			if before != nil {
				before.kill(ctx)
			}
			metrics := make(chan error, 1)
			if listener != nil {
				server := metricsServer(s)
				go func() { metrics <- server.Serve(listener) }()
				defer server.Close()
			}
			fmt.Println("ready")
			select {
			case <-ctx.Done():
				return s.Close()
			case err := <-metrics:
				return errors.Join(fmt.Errorf("metrics: %w", err), s.Close())
			case err := <-s.Done():
				return errors.Join(err, s.Close())
			}
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Root, "root", "/var/lib/wangell/lazy", "folder for layers and snapshots")
	f.StringVar(&c.Socket, "socket", "/run/wangell-lazy.sock", "path of the socket for containerd")
	f.StringVar(&hostsDir, "hosts-dir", "/etc/containerd/certs.d",
		"folder of containerd's settings of registries (config_path)")
	f.StringVar(&metricsAddress, "metrics-address", "", "host:port for Prometheus metrics (default: not served)")
	f.StringVar(&containerdAddress, "containerd-address", "", "socket of containerd, to restart the containers of "+
		"Kubernetes that lost their files with an earlier snapshotter (default: they are left alone)")
	f.StringArrayVar(&insecure, "insecure-registry", nil,
		"registry to use over plain HTTP, as HOST, HOST:PORT or an address range (repeatable)")
	f.IntVar(&c.Workers, "workers", lazy.DefaultWorkers, "number of concurrent requests in the background")
	f.Int64Var(&c.Piece, "piece", lazy.DefaultPiece, "size of each of these requests, in bytes")
	f.DurationVar(&c.Patience, "patience", lazy.DefaultPatience,
		"how long a read that waits for the registry may get no byte before it fails with EIO")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.UsageError{Command: cmd.CommandPath(), Err: err}
	})
	return cmd
}

// metricsServer serves the metrics of a snapshotter and of this process at /metrics.
func metricsServer(s *lazy.Server) *http.Server {
	r := prometheus.NewRegistry()
	r.MustRegister(s, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return &http.Server{Handler: ownhost.Guard(mux), ReadHeaderTimeout: 5 * time.Second}
}

// hosts returns the hosts of registries, by containerd's settings or over plain HTTP.
func hosts(ctx context.Context, options config.HostOptions, insecure []string) docker.RegistryHosts {
	configured := config.ConfigureHosts(ctx, options)
	options.HostDir, options.DefaultScheme = nil, "http"
	plain := config.ConfigureHosts(ctx, options)
	return registryhosts.New(func(host string) ([]docker.RegistryHost, error) {
		if insecure, err := containerd.PlainHTTP(insecure, host); err != nil || !insecure {
			return configured(host)
		}
		return plain(host)
	}).Hosts
}
