// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/status"

	"wangell.loutres.me/internal/runtime"
)

// retryEvery is the interval of calls while containerd is away.
const retryEvery = 100 * time.Millisecond

// Dial returns the version of the containerd that listens at a socket. The error wraps runtime.ErrUnavailable if it
// does not answer within 2 s.
func Dial(ctx context.Context, address string) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := os.Stat(address); err != nil {
		return "", fmt.Errorf("containerd at %s: %w: %w", address, runtime.ErrUnavailable, err)
	}
	c, err := connect(address, DefaultNamespace)
	if err != nil {
		return "", err
	}
	defer c.Close()
	v, err := c.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("containerd at %s: %w: %w", address, runtime.ErrUnavailable, err)
	}
	return strings.SplitN(v.Version, "~", 2)[0], nil
}

// connect returns a client that connects at the first call, and again whenever containerd is back.
func connect(address, namespace string, more ...grpc.DialOption) (*client.Client, error) {
	c, err := client.New(address, client.WithDefaultNamespace(namespace),
		client.WithExtraDialOpts(append([]grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
					MaxDelay: 100 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}),
			grpc.WithIdleTimeout(0), // a wake must not pay for a new connection
		}, more...)))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", address, err)
	}
	return c, nil
}

// native converts an error of containerd into one that works with errdefs and errors.Is, and that wraps
// runtime.ErrUnavailable if containerd did not answer.
func native(err error) error {
	if err == nil {
		return nil
	}
	// An error that containerd's client has already converted would lose its class in a second conversion.
	if _, isGRPC := status.FromError(err); isGRPC {
		err = errgrpc.ToNative(err)
	}
	if errdefs.IsUnavailable(err) && !errors.Is(err, runtime.ErrUnavailable) {
		return fmt.Errorf("containerd: %w: %w", runtime.ErrUnavailable, err)
	}
	return err
}

// absent is native, with "not found" counted as success.
func absent(err error) error {
	if err = native(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// retry calls f until its error does not wrap runtime.ErrUnavailable, or ctx ends.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, runtime.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(retryEvery):
		}
	}
}

// diskFull reports whether err was caused by a full disk. Errors that came through gRPC are recognized by their text.
func diskFull(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()))
}

// explainFull adds advice about a full disk, which runc's error lacks.
func explainFull(err error) error {
	if diskFull(err) {
		return fmt.Errorf("no space left on device where containerd keeps containers: free some space: %w", err)
	}
	return err
}

// explainStart adds what a user can do about an error of runc that names the program of an image.
func explainStart(err error, image string) error {
	if err = explainFull(err); err != nil && strings.Contains(err.Error(), `: exec: "`) {
		return fmt.Errorf("image %q cannot run its program: correct spec.command: %w", image, err)
	}
	return err
}

// cleanUp is the time limit for removing the remains of a failed call; after that the keeper removes them.
const cleanUp = 10 * time.Second
