// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"strings"
	"testing"
)

func TestCgroupOfAPodIsThatWithItsUID(t *testing.T) {
	const uid = "0c1d2e3f-0001-4a5b-8c9d-000000000001"
	const systemd = "kubepods-burstable-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice"
	for _, c := range []struct{ path, want string }{
		{"/kubepods/burstable/pod" + uid + "/0a1b", "/kubepods/burstable/pod" + uid},
		{"/kubepods/pod" + uid + "/0a1b", "/kubepods/pod" + uid},
		{"/kubelet/kubepods/besteffort/pod" + uid + "/0a1b", "/kubelet/kubepods/besteffort/pod" + uid},
		{systemd + ":cri-containerd:0a1b", "/kubepods.slice/kubepods-burstable.slice/" + systemd},
		{"kubepods-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice:cri-containerd:0a1b",
			"/kubepods.slice/kubepods-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice"},
		{"kubelet-" + systemd + ":cri-containerd:0a1b", // as of kind, whose cgroupRoot is /kubelet
			"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-" + systemd},
		{systemd + ":crio:0a1b", "/kubepods.slice/kubepods-burstable.slice/" + systemd},
		{"/kubepods/burstable/pod" + strings.Replace(uid, "1", "2", 1) + "/0a1b", ""}, // another pod's
		{"/kubepods/burstable/0a1b", ""},                                              // all pods'
		{"/kubepods/burstable/pod" + uid + "/../0a1b", ""},
		{"kubepods-burstable.slice:cri-containerd:0a1b", ""},
		{"/", ""}, {"", ""},
	} {
		got, err := cgroupOf(map[string]string{
			"info": fmt.Sprintf(`{"pid":7,"runtimeSpec":{"linux":{"cgroupsPath":%q}}}`, c.path),
		}, uid)
		if got.Path != c.want || (err == nil) != (c.want != "") || err == nil && got.PID != 7 {
			t.Errorf("%s: got %+v, %v; want %q", c.path, got, err, c.want)
		}
	}
	for _, info := range []string{"", "{", `{"runtimeSpec":{"linux":{"cgroupsPath":"/kubepods/pod` + uid + `/a"}}}`} {
		if got, err := cgroupOf(map[string]string{"info": info}, uid); err == nil {
			t.Errorf("%s: got %+v", info, got)
		}
	}
}

// FuzzCgroup parses any path as that of a pod's pause container: what is found is always named by the pod's UID.
func FuzzCgroup(f *testing.F) {
	const uid = "0c1d2e3f-0001-4a5b-8c9d-000000000001"
	f.Add("/kubepods/burstable/pod" + uid + "/0a1b")
	f.Add("kubepods-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice:cri-containerd:a")
	f.Fuzz(func(t *testing.T, path string) {
		got, err := cgroupOf(map[string]string{
			"info": fmt.Sprintf(`{"pid":7,"runtimeSpec":{"linux":{"cgroupsPath":%q}}}`, path),
		}, uid)
		if err == nil && (!strings.HasPrefix(got.Path, "/") || strings.Contains(got.Path, "/..") ||
			!strings.Contains(got.Path, uid[:8])) {
			t.Errorf("%q gives %q", path, got.Path)
		}
	})
}
