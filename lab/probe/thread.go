// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"runtime"

	"wangell.loutres.me/test/testutil/netlab"
)

// OnThread calls f on a thread of its own with a DialFunc, which connects once, from a namespace. All calls of the
// connection block that thread, so that f measures the service: with Go's poller in between, an idle thread takes
// longer to notice an answer than some services take to send it. The connection is closed afterwards.
func OnThread(from *netlab.Namespace, f func(DialFunc) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := from.Socket()
	if err != nil {
		return err
	}
	defer s.Close()
	return f(s.DialContext)
}

// RequestOnThread is Request by OnThread.
func RequestOnThread(ctx context.Context, from *netlab.Namespace, address, host string) (t Timing, err error) {
	return t, OnThread(from, func(dial DialFunc) (err error) {
		t, err = Request(ctx, dial, address, host)
		return err
	})
}
