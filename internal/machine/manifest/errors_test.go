// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// header is the beginning of a valid manifest.
const header = "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: hello}\n"

var update = flag.Bool("update", false, "rewrite testdata/mistakes/*.errors")

// Each manifest in testdata/mistakes is loaded. Its errors must be the content of the file with .errors added to its
// name, in which lines begin after the name of the manifest. Run with -update after changing a message, and read the
// difference.
func TestMistakesAreLocatedAndExplained(t *testing.T) {
	for _, pattern := range []string{"*.yaml", "*.json"} {
		files, err := filepath.Glob(filepath.Join("testdata/mistakes", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d manifests, %v", len(files), err)
		}
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				set, err := load(t, "", file)
				if err == nil || len(set) > 0 {
					t.Fatalf("no error, and %d services", len(set))
				}
				got := strings.ReplaceAll(err.Error(), file, "") + "\n"
				if *update {
					if err := os.WriteFile(file+".errors", []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file + ".errors")
				if err != nil {
					t.Fatal(err)
				}
				if got != string(want) {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func TestErrorsOfAllFilesAreReportedTogether(t *testing.T) {
	dir := write(t, map[string]string{
		"good.yaml":  doc("a", hello),
		"bad.yaml":   doc("b", "image: a/b, port: x"),
		"worse.yaml": "{",
	})
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := load(t, "", dir, filepath.Join(dir, "missing.yaml"))
	const noFile = "no such file or directory: check the path; relative paths begin at the current folder"
	want := []string{
		"bad.yaml:1:111: spec.port: want a number from 1 to 65535, got the text \"x\": write port: 80",
		"dangling.yaml: " + noFile,
		"missing.yaml: " + noFile,
		"worse.yaml:1: YAML: did not find expected node content: " +
			"check the quotes, brackets and indentation here and on the line before",
	}
	if err == nil || strings.ReplaceAll(err.Error(), dir+"/", "") != strings.Join(want, "\n") {
		t.Errorf("got\n%v", err)
	}
}

func TestNearestSuggestsOnlyCloseNames(t *testing.T) {
	names := []string{"port", "targetPort", "imagePullPolicy", "idleTimeout", "env", "args"}
	for word, want := range map[string]string{
		"prot": "port", "Port": "port", "por": "port", "ports": "port", "targetport": "targetPort",
		"target_port": "targetPort", "imagePullPolcy": "imagePullPolicy", "idle": "", "x": "", "environs": "",
	} {
		if got, _ := nearest(word, names); got != want {
			t.Errorf("%s: got %q, want %q", word, got, want)
		}
	}
}

// A field of pods that stands in the spec of a service has a place, which its error names.
func TestFieldsOfPodsHaveAPlace(t *testing.T) {
	for fields, want := range map[string]string{
		"nodeSelector: {a: b}": "spec.nodeSelector: unknown field: remove it; on Kubernetes it goes into spec.template.spec",
		"livenessProbe: {}": "spec.livenessProbe: unknown field: remove it; on Kubernetes it goes into a container of " +
			"spec.template.spec.containers",
		"idleTimeOut: 3": "spec.idleTimeOut: unknown field: did you mean idleTimeout?",
	} {
		_, err := load(t, doc("a", fields+", "+hello), "-")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", fields, err, want)
		}
	}
}
