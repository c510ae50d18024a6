// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/containerdtest"
)

func TestSnapshotterIsCheckedWithTheMachinesContainerd(t *testing.T) {
	if got := snapshotter(t.Context(), "/nowhere/containerd.sock", "native"); got != nil {
		t.Errorf("without a containerd: %+v", got)
	}
	c := containerdtest.Start(t, 0)
	for name, want := range map[string]State{"native": OK, "blockfile": Warn} {
		got := snapshotter(t.Context(), c.Socket, name)
		if len(got) != 1 || got[0].State != want || !strings.Contains(got[0].Found, "native") ||
			(want == Warn) != (got[0].Do != "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestGroundIsJudgedForTheSnapshotter(t *testing.T) {
	on := func(fs string) ground { return ground{fsType: fs, source: "/dev/vda1", free: 100 << 30} }
	for _, c := range []struct{ snapshotter, fs, want string }{
		{"btrfs", "ext4", "the snapshotter btrfs needs btrfs"},
		{"btrfs", "btrfs", ""},
		{"zfs", "btrfs", "the snapshotter zfs needs zfs"},
		{"native", "overlay", ""},
		{"erofs", "overlay", "on another overlayfs"},
	} {
		problem, _ := on(c.fs).judge(c.snapshotter)
		if (c.want == "") != (problem == "") || !strings.Contains(problem, c.want) {
			t.Errorf("%s on %s: %q", c.snapshotter, c.fs, problem)
		}
	}
	typeless := on("xfs")
	typeless.typeless = true
	if problem, _ := typeless.judge("native"); problem != "" {
		t.Errorf("native does not need types: %q", problem)
	}
}
