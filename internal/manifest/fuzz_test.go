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
	"wangell.loutres.me/internal/runtime"
)

// loadText is Load of one text.
func loadText(file string, text []byte) (Set, Errors) {
	l := &loader{names: map[runtime.Key]place{}, addresses: map[string]addressUse{}}
	l.file(file, text)
	return l.set, l.errs
}

// FuzzLoad: reading never panics; an error has a message; what is read is valid, is read again from
// its own JSON, and is what Kubernetes' reader makes of the same text.
func FuzzLoad(f *testing.F) {
	examples, err := filepath.Glob("../../examples/*.yaml")
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
		"{\"apiVersion\": \"wangell.loutres.me/v1alpha1\", \"kind\": \"WangellService\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"image\": \"a/b\", \"port\": 80}}",
		header + "spec: {image: a/b, port: 80, resources: {limits: {cpu: .5, memory: 1e8}, requests: {cpu: +1m}}}\n",
		header + "spec: {image: a/b, port: 80, volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /a}]}\n",
		"x: &x [*x]\n", "- &a\n- *a\n", "? [a]\n: b\n", "!!binary aGVsbG8=\n", "--- !foo bar\n...\n", "\ufeff{}", "\t", "%YAML 1.1\n---\n",
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
				again(t, s)
			}
			if len(set) == 1 {
				compare(t, text, set[0])
			}
		}
	})
}

// again checks that a service is valid and is the same after it was written and read.
func again(t *testing.T, s *v1alpha1.WangellService) {
	if errs := v1alpha1.Validate(s); len(errs) > 0 {
		t.Errorf("read, but not valid: %v", errs)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	set, errs := loadText("f.json", text)
	if len(errs) > 0 || len(set) != 1 || !equality.Semantic.DeepEqual(set[0], s) {
		t.Errorf("written as %s and read as %+v, %v; was %+v", text, set, errs, s)
	}
}

// compare reads a text as Kubernetes does. What that refuses (it reads an older YAML) is not compared.
func compare(t *testing.T, text []byte, s *v1alpha1.WangellService) {
	if bytes.Contains(text, []byte("<<")) || bytes.Contains(text, []byte("---")) {
		return // documents are split and merged otherwise there
	}
	other := new(v1alpha1.WangellService)
	if err := yaml.UnmarshalStrict(text, other); err != nil {
		return
	}
	v1alpha1.Default(other)
	other.Status = v1alpha1.WangellServiceStatus{}
	if !equality.Semantic.DeepEqual(s, other) {
		t.Errorf("got %+v, Kubernetes' reader %+v", s, other)
	}
}
