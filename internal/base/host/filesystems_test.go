// SPDX-License-Identifier: Apache-2.0

package host

import "testing"

func TestFilesystemsAndModulesAreFoundByName(t *testing.T) {
	list := []byte("nodev\tsysfs\n\text4\nnodev\tbpf\n")
	for name, want := range map[string]bool{"ext4": true, "bpf": true, "overlay": false, "sys": false, "": false} {
		if got := listed(list, name); got != want {
			t.Errorf("listed(%q) = %t, want %t", name, got, want)
		}
	}
	modules := []byte("kernel/fs/overlayfs/overlay.ko.xz: kernel/lib/x.ko\nkernel/fs/fat/fat.ko:\n")
	for name, want := range map[string]bool{"overlay": true, "fat": true, "x": false} {
		if got := hasModule(modules, name); got != want {
			t.Errorf("hasModule(%q) = %t, want %t", name, got, want)
		}
	}
}

func TestRunningKernelHasProc(t *testing.T) {
	if found, err := FindFilesystem("proc", ""); err != nil || found != BuiltIn {
		t.Errorf("proc: %q, %v", found, err)
	}
	if found, err := FindFilesystem("no-such-type", ""); err != nil || found != Missing {
		t.Errorf("a type that does not exist: %q, %v", found, err)
	}
}
