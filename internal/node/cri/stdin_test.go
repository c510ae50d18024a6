// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestStdinPipesAreThoseOfContainersWithStandardInput(t *testing.T) {
	dir := t.TempDir()
	with, without, other := strings.Repeat("a1", 32), strings.Repeat("b2", 32), strings.Repeat("c3", 32)
	var made []string
	for id, name := range map[string]string{with: with + "-stdin", without: without + "-stdout", other: other + "-stdin"} {
		at := filepath.Join(dir, "io.containerd.grpc.v1.cri", "containers", id, "io", "123")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if id == with {
			made = append(made, filepath.Join(at, name))
		}
	}
	pod := "/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice"
	for _, format := range []string{"", "cri-containerd-"} {
		suffix := ""
		if format != "" {
			suffix = ".scope"
		}
		cgroups := []string{pod}
		for _, id := range []string{with, without} {
			cgroups = append(cgroups, pod+"/"+format+id+suffix)
		}
		for _, scheme := range []string{"", "unix://"} {
			w := &Watcher{cfg: Config{Endpoint: scheme + dir + "/containerd.sock"}}
			if got := w.StdinPipes(cgroups); !slices.Equal(got, made) {
				t.Errorf("%s, %q: %q, want %q", w.cfg.Endpoint, cgroups, got, made)
			}
		}
	}
	w := &Watcher{cfg: Config{Endpoint: "/run/crio/crio.sock"}}
	if got := w.StdinPipes([]string{pod + "/crio-" + with + ".scope"}); got != nil {
		t.Errorf("another container runtime: %q", got)
	}
}
