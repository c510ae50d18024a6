// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"log/slog"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"wangell.loutres.me/internal/images/lazy/failures"
)

// Defaults of Config.
const (
	DefaultWorkers  = 4
	DefaultPiece    = 4 << 20
	DefaultPatience = 30 * time.Second
	DefaultSettle   = 300 * time.Millisecond
)

// Config configures a Server. The zero value of an optional field means its default.
type Config struct {
	// Root is the folder for layers and snapshots. It survives the Server. Required.
	Root string
	// Socket is the path of the socket for containerd. Required.
	Socket string
	// Hosts returns how to ask registries. Required.
	Hosts docker.RegistryHosts
	// Workers is the number of concurrent requests in the background. Default: DefaultWorkers.
	Workers int
	// Piece is the size of such a request in bytes, rounded up to 256 KiB. Default: DefaultPiece.
	Piece int64
	// Patience is how long a read waits for the next byte from mirrors and the registry before it fails with EIO.
	// Default: DefaultPatience.
	Patience time.Duration
	// Settle is the pause between the last mount and the background's start: containerd mounts the layers of an image
	// one after the other, and each mount would have to share the link. Default: DefaultSettle.
	Settle time.Duration
	// Failed is called when files of an image cannot be read, in a goroutine of its own: once, until a request for the
	// layer succeeds. Optional.
	Failed func(failures.Failure)
	Log    *slog.Logger
}
