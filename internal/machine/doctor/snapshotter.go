// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/client"

	"wangell.loutres.me/internal/runtime/containerd"
)

// snapshotter checks whether the machine's containerd can use a snapshotter; it returns nothing if there is no such
// containerd. wangell up checks a containerd that it starts itself.
func snapshotter(ctx context.Context, address, name string) []Check {
	if _, err := os.Stat(address); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := Check{Name: "snapshotter", Group: Storage, For: "images and the layers of containers"}
	conn, err := client.New(address, client.WithTimeout(checkTimeout))
	if err != nil {
		return []Check{c.skipped(err.Error())}
	}
	defer conn.Close()
	usable, err := containerd.Snapshotters(ctx, conn, address, name)
	if err != nil {
		c.Do = "wangell up --snapshotter NAME, or change containerd's configuration"
		return []Check{c.warn(err.Error())}
	}
	return []Check{c.ok(fmt.Sprintf("%s; containerd at %s can use %s", name, address, strings.Join(usable, ", ")))}
}
