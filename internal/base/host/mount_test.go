// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestTheLastMountAtTheDeepestPlaceCounts(t *testing.T) {
	mounts := []*mountinfo.Info{
		{Mountpoint: "/", Source: "root"}, {Mountpoint: "/var/lib", Source: "under"}, {Mountpoint: "/var", Source: "var"},
		{Mountpoint: "/var/lib", Source: "over"},
	}
	for path, want := range map[string]string{
		"/var/lib": "over", "/var/lib/x": "over", "/var/library": "var", "/variable": "root", "/": "root",
	} {
		if m := covering(path, mounts); m == nil || m.Source != want {
			t.Errorf("%s: %+v, want %s", path, m, want)
		}
	}
	if m := covering("/", nil); m != nil {
		t.Errorf("of none: %+v", m)
	}
}

func TestFilesAreOnTheMountAboveThem(t *testing.T) {
	m, err := MountOf("/proc/self")
	if err != nil || m.Mountpoint != "/proc" || m.FSType != "proc" {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := MountOf("/proc-not"); err != nil || m.Mountpoint != "/" {
		t.Errorf("beside it: %+v, %v", m, err)
	}
}
