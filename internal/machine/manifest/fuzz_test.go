// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"
	"wangell.loutres.me/api/v1alpha1"
)

// loadText loads one text as the content of a file.
func loadText(file string, text []byte) (Set, Errors) {
	l := newLoader()
	l.file(file, text)
	var set Set
	for _, s := range l.services {
		set = append(set, s.WangellService)
	}
	return set, l.errs
}

// FuzzLoad checks that loading never panics, that every error has a message, and that every loaded service is valid,
// survives a round trip through JSON and equals what Kubernetes decodes from the same text.
func FuzzLoad(f *testing.F) {
	examples, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(examples) == 0 {
		f.Fatalf("no examples: %v", err)
	}
	for _, file := range examples {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{
		doc("a", hello), doc("a", hello) + "---\n" + doc("b", hello),
		header + "spec: {image: a/b, port: 0x50, idleTimeout: 1_0, env: [{name: A, value: 2024-01-02}]}\n",
		header + "spec: &s {image: a/b, port: 80}\nstatus: *s\n",
		header + "spec:\n  <<: {image: a/b}\n  port: 80\n",
		jsonDoc("a"),
		header + "spec: {image: a/b, port: 80, resources: {limits: {cpu: .5, memory: 1e8}, requests: {cpu: +1m}}}\n",
		header + "spec: {image: a/b, port: 80, volumes: [{name: a, emptyDir: {}}], " +
			"volumeMounts: [{name: a, mountPath: /a}]}\n",
		"x: &x [*x]\n", "- &a\n- *a\n", "? [a]\n: b\n", "!!binary aGVsbG8=\n", "--- !foo bar\n...\n", "\ufeff{}", "\t",
		"%YAML 1.1\n---\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"f.yaml", "f.json"} {
			set, errs := loadText(name, text)
			for _, e := range errs {
				if e.Message == "" || strings.ContainsAny(e.Error(), "\x1b\n") && !strings.Contains(e.Message, "YAML: ") {
					t.Errorf("bad error: %q", e.Error())
				}
			}
			if len(errs) > 0 {
				continue
			}
			for _, s := range set {
				roundTrip(t, s)
			}
			if len(set) == 1 {
				compareWithKubernetes(t, text, set[0])
			}
		}
	})
}

// roundTrip checks that a service is valid and unchanged after it is encoded and loaded again.
func roundTrip(t *testing.T, s *v1alpha1.WangellService) {
	if errs := v1alpha1.Validate(s); len(errs) > 0 {
		t.Errorf("loaded, but not valid: %v", errs)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	set, errs := loadText("f.json", text)
	if len(errs) > 0 || len(set) != 1 || !equality.Semantic.DeepEqual(set[0], s) {
		t.Errorf("encoded as %s and loaded as %+v, %v; was %+v", text, set, errs, s)
	}
}

// compareWithKubernetes decodes a text as Kubernetes does and compares the result. Texts that Kubernetes refuses are
// skipped, because it reads an older version of YAML.
func compareWithKubernetes(t *testing.T, text []byte, s *v1alpha1.WangellService) {
	if bytes.Contains(text, []byte("<<")) || bytes.Contains(text, []byte("---")) {
		return // Kubernetes splits documents and merges keys differently
	}
	other := new(v1alpha1.WangellService)
	if err := yaml.UnmarshalStrict(text, other); err != nil {
		return
	}
	v1alpha1.Default(other)
	other.Status = v1alpha1.WangellServiceStatus{}
	if !equality.Semantic.DeepEqual(s, other) {
		t.Errorf("got %+v, Kubernetes decodes %+v", s, other)
	}
}
