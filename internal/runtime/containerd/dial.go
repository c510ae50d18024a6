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

// retryEvery is the pace of calls while containerd is away.
const retryEvery = 100 * time.Millisecond

// Dial asks the containerd that listens at the socket address for its version. The error wraps
// runtime.ErrUnavailable if none answers within 2 s.
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

// connect makes a client that connects when it is first used and again whenever containerd is back.
func connect(address, namespace string, more ...grpc.DialOption) (*client.Client, error) {
	c, err := client.New(address, client.WithDefaultNamespace(namespace), client.WithExtraDialOpts(append([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithIdleTimeout(0), // a wake must not pay for connecting again
	}, more...)))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", address, err)
	}
	return c, nil
}

// native turns an error of containerd into one that errdefs and errors.Is understand, and that wraps
// runtime.ErrUnavailable if containerd did not answer.
func native(err error) error {
	if err == nil {
		return nil
	}
	// What containerd's client has turned already would lose its class by being turned again.
	if _, isGRPC := status.FromError(err); isGRPC {
		err = errgrpc.ToNative(err)
	}
	if errdefs.IsUnavailable(err) && !errors.Is(err, runtime.ErrUnavailable) {
		return fmt.Errorf("containerd: %w: %w", runtime.ErrUnavailable, err)
	}
	return err
}

// absent is native, with "not found" taken as success.
func absent(err error) error {
	if err = native(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// retry calls f again, while it says that containerd does not answer, until ctx ends.
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

// diskFull tells that err comes from a full disk; through gRPC only the words remain.
func diskFull(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()))
}
