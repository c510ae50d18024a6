// SPDX-License-Identifier: Apache-2.0

// Package lazy is a remote snapshotter for containerd: containers start from images in eStargz or zstd:chunked before
// their layers are complete. Layers are mounted by FUSE; what is read is fetched first, and everything else in the
// background. Layers in other formats are pulled as usual.
package lazy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/stargz-snapshotter/snapshot"
	"google.golang.org/grpc"
)

// Server is a snapshotter that serves containerd.
type Server struct {
	fs          *filesystem
	store       *Store
	snapshotter snapshots.Snapshotter
	grpc        *grpc.Server
	served      chan error
	listen      net.Listener
}

// Start mounts the layers of an earlier Server with the same root, and begins to serve. A layer that cannot be
// mounted, because nothing of it is present and the registry does not answer, is logged; containerd cannot use it
// until it is removed and pulled again. Containers of an earlier Server that was killed have lost their files.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	if !filepath.IsAbs(cfg.Root) || !filepath.IsAbs(cfg.Socket) {
		return nil, fmt.Errorf("root %q and socket %q: write absolute paths", cfg.Root, cfg.Socket)
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, fmt.Errorf("lazy pulling needs FUSE: load the kernel module fuse: %w", err)
	}
	if cfg.Workers == 0 {
		cfg.Workers = DefaultWorkers
	}
	if cfg.Piece == 0 {
		cfg.Piece = DefaultPiece
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Settle == 0 {
		cfg.Settle = DefaultSettle
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Server{served: make(chan error, 1)}
	// The socket comes first: its owner owns the folder.
	if s.listen, err = Listen(cfg.Socket); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.listen.Close()
		}
	}()
	states := filepath.Join(cfg.Root, "snapshotter")
	if err := detachAll(states); err != nil {
		return nil, err
	}
	s.store, err = newStore(cfg)
	if err != nil {
		return nil, fmt.Errorf("folder for layers: %w", err)
	}
	defer func() {
		if err != nil {
			s.store.close()
		}
	}()
	defer context.AfterFunc(ctx, s.store.abort)() // mounts must not keep waiting for a registry
	if s.fs, err = newFilesystem(filepath.Join(cfg.Root, "cache"), s.store, cfg.Hosts); err != nil {
		return nil, err
	}
	s.snapshotter, err = snapshot.NewSnapshotter(ctx, states, s.fs, snapshot.AllowInvalidMountsOnRestart)
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", states, err)
	}
	if err := s.store.removeOthers(); err != nil {
		cfg.Log.Warn("files of layers that are no longer mounted cannot be removed", "error", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, s.unmount())
	}
	s.grpc = grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(s.grpc, snapshotservice.FromSnapshotter(s.snapshotter))
	go func() { s.served <- s.grpc.Serve(s.listen) }()
	return s, nil
}

// Listen returns a socket for root. It replaces one that is no longer served.
func Listen(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("%s is served by another snapshotter: stop that one, or use another socket", path)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o711), os.RemoveAll(path)); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	return l, err
}

// Stats returns what was done so far.
func (s *Server) Stats() Stats {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	stats := s.store.stats
	stats.Sources = maps.Clone(stats.Sources)
	for _, b := range s.store.blobs {
		stats.Missing += int64(b.left) * blockSize
	}
	return stats
}

// Done returns a channel that gets the error when the socket is no longer served.
func (s *Server) Done() <-chan error { return s.served }

// Close ends the service and unmounts all layers: containers that use them get EIO or ENOTCONN. Fetched bytes stay
// for the next Server.
func (s *Server) Close() error {
	s.grpc.Stop()
	err := s.unmount()
	s.store.close()
	return err
}

// unmount unmounts all layers.
func (s *Server) unmount() error {
	s.fs.leave()
	return s.snapshotter.Close()
}
