// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/log"

	"wangell.loutres.me/test/testutil/syncbuf"
)

func TestPullSaysNothingBesideItsError(t *testing.T) {
	r := start(t, unready(t))
	var said syncbuf.Buffer
	log.L.Logger.SetOutput(&said)
	t.Cleanup(func() { log.L.Logger.SetOutput(os.Stderr) })
	_, err := Pull(t.Context(), r.Client(), DefaultSnapshotter, "127.0.0.1:1/none:v1", nil, func(int64, int64) {})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1 does not answer") || said.String() != "" {
		t.Errorf("%v; log: %q", err, said.String())
	}
}
