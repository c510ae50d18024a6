// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The kernel accepts connections for an instance that is stopped.
func TestInstanceThatDoesNotAnswerIsNotWaitedForLong(t *testing.T) {
	defer func(d time.Duration) { answerTimeout = d }(answerTimeout)
	answerTimeout = 50 * time.Millisecond
	path := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(path)
	defer c.Close()
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "has not answered for 50ms") ||
		!strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}
