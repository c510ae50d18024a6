// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"wangell.loutres.me/internal/runtime"
)

// Some calls of containerd's client return gRPC errors, others have converted them already.
func TestErrorsOfContainerdKeepTheirClass(t *testing.T) {
	notFound := status.Error(codes.NotFound, "container x: not found")
	for _, err := range []error{notFound, errgrpc.ToNative(notFound),
		fmt.Errorf("remove: %w", errgrpc.ToNative(notFound))} {
		if got := native(err); !errdefs.IsNotFound(got) {
			t.Errorf("native(%v) is %v, want not found", err, got)
		}
		if got := absent(err); got != nil {
			t.Errorf("absent(%v) is %v, want nil", err, got)
		}
	}
	away := status.Error(codes.Unavailable, "connection refused")
	for _, err := range []error{away, errgrpc.ToNative(away)} {
		if got := native(err); !errors.Is(got, runtime.ErrUnavailable) {
			t.Errorf("native(%v) is %v, want ErrUnavailable", err, got)
		}
	}
	if native(nil) != nil || absent(nil) != nil {
		t.Error("nil became an error")
	}
}
