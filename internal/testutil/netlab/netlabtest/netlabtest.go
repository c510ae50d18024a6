// SPDX-License-Identifier: Apache-2.0

// Package netlabtest is netlab for tests.
package netlabtest

import (
	"os"
	"testing"

	"wangell.loutres.me/internal/testutil/netlab"
)

// New makes a network that ends with the test. Without root the test is skipped.
func New(t testing.TB, cfg netlab.Config) *netlab.Net {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
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
