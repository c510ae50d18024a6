// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// knativeInstalled is whether testKnative has installed Knative.
var knativeInstalled bool

// testKnative installs Knative, which the experiments compare with. Most of it is waiting, so it is done beside other
// tests.
func testKnative(t *testing.T) {
	if !knativeInstalled {
		knativeInstalled = true
		if err := knative("install", "--scale-to-zero-grace-period", "6s"); err != nil {
			t.Fatal(err)
		}
	}
}

// removeKnative removes Knative if testKnative has installed it.
func removeKnative() error {
	if !knativeInstalled {
		return nil
	}
	knativeInstalled = false
	return knative("uninstall")
}

// knative runs a command of test/knative for the cluster under test.
func knative(command string, args ...string) error {
	args = append([]string{"run", "-C", filepath.Join(root, "test/knative"), ".", command, "--cluster", clusterFile()},
		args...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("knative %s: %w: %s", command, err, out)
	}
	return nil
}

// clusterFile is the file that describes the cluster under test.
func clusterFile() string { return filepath.Join(lab.dir, "cluster.json") }

// testLabs runs the experiments on this cluster in their small sizes. It checks that they work, not what they measure.
func testLabs(t *testing.T) {
	program := filepath.Join(folder, "wangell-lab")
	build := exec.Command("go", "build", "-o", program, "wangell.loutres.me/lab/cmd/wangell-lab")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := removeKnative(); err != nil {
			t.Error(err)
		}
	})
	testKnative(t)
	file := clusterFile()
	for _, x := range []struct {
		name string
		args []string
		keys []string // of the summary
	}{
		{"knative", []string{"--sides", "wangell,floor,knative", "--requests", "2"},
			[]string{"wangell_mean_ms", "wangell_stddev_ms", "knative_mean_ms", "ratio_mean", "overhead_median_ms", "lost"}},
		{"balance", []string{"--time", "1s"}, nil},
		{"flood", []string{"--parts", "cluster", "--rate", "5000", "--time", "2s"},
			[]string{"wangell_cluster_failed", "kube_proxy_failed", "knative_failed"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			out := t.TempDir()
			c := exec.Command(program, append([]string{x.name, "--cluster", file, "--quick", "--out", out}, x.args...)...)
			if text, err := c.CombinedOutput(); err != nil {
				t.Fatalf("lab %s: %v: %s", x.name, err, text)
			}
			b, err := os.ReadFile(filepath.Join(out, x.name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var report struct{ Summary map[string]float64 }
			if err := json.Unmarshal(b, &report); err != nil {
				t.Fatal(err)
			}
			for _, key := range x.keys {
				if _, there := report.Summary[key]; !there {
					t.Errorf("summary: no %s in %v", key, report.Summary)
				}
			}
			if len(report.Summary) == 0 {
				t.Error("the summary is empty")
			}
			if lost, there := report.Summary["lost"]; there && lost != 0 {
				t.Errorf("%v requests lost", lost)
			}
		})
	}
}
