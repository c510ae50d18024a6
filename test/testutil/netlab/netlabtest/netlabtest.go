// SPDX-License-Identifier: Apache-2.0

// Package netlabtest creates networks of package netlab for tests.
package netlabtest

import (
	"testing"

	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/netlab"
)

// New creates a network that is removed at the end of the test. The test needs root.
func New(t testing.TB, cfg netlab.Config) *netlab.Net {
	t.Helper()
	need.Root(t)
	n, err := netlab.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
