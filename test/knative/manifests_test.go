// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// realManifests returns the modules' manifests. `go mod download` fetches missing modules.
func realManifests(t *testing.T) []byte {
	t.Helper()
	mods := map[string]module{}
	for _, path := range modules {
		m, err := findModule(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		mods[path] = m
	}
	text, err := readManifests(mods)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func allImages() map[string]string {
	images := map[string]string{"envoy": "r/envoy:1@sha256:00"}
	for program := range programs {
		images[program] = "r/" + program + ":1@sha256:00"
	}
	return images
}

func TestRenderReplacesEveryImage(t *testing.T) {
	objects, err := render(realManifests(t), allImages(), 6*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	text := string(marshal(objects))
	for _, never := range []string{"ko://", "docker.io", "gcr.io"} {
		if i := strings.Index(text, never); i >= 0 {
			t.Errorf("the manifests still ask for %s: …%s", never, text[i:min(len(text), i+80)])
		}
	}
	for program, image := range allImages() {
		if !strings.Contains(text, image) {
			t.Errorf("no manifest asks for %s", program)
		}
	}
	count := map[string]int{}
	config := map[string]map[string]any{}
	for _, o := range objects {
		count[o.kind()]++
		if o.kind() == "ConfigMap" {
			config[o.name()], _ = o["data"].(map[string]any)
		}
	}
	// What the modules of Serving, networking and caching v0.48.0 define.
	if count["CustomResourceDefinition"] != 12 {
		t.Errorf("%d kinds of Knative, want 12", count["CustomResourceDefinition"])
	}
	for _, names := range deployments {
		for _, name := range names {
			if !strings.Contains(text, `"name":"`+name+`"`) {
				t.Errorf("no deployment %s", name)
			}
		}
	}
	if config["config-network"]["ingress-class"] != ingressClass {
		t.Errorf("ingress class %v", config["config-network"]["ingress-class"])
	}
	if _, ok := config["config-domain"][domain]; !ok {
		t.Errorf("no domain: %v", config["config-domain"])
	}
	if got := config["config-autoscaler"]["scale-to-zero-grace-period"]; got != "6s" {
		t.Errorf("grace period %v", got)
	}
	first, rest := split(objects)
	if len(first)+len(rest) != len(objects) || len(first) != count["CustomResourceDefinition"]+count["Namespace"] {
		t.Errorf("%d first, %d afterwards, of %d", len(first), len(rest), len(objects))
	}
}

func TestRenderKeepsTheDefaultGracePeriod(t *testing.T) {
	objects, err := render(realManifests(t), allImages(), defaultGrace)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.kind() != "ConfigMap" || o.name() != "config-autoscaler" {
			continue
		}
		data, _ := o["data"].(map[string]any)
		for key := range data {
			if key != "_example" {
				t.Errorf("config-autoscaler sets %s: the defaults were asked for", key)
			}
		}
	}
}

func TestRenderRefusesUnknownManifests(t *testing.T) {
	for name, test := range map[string]struct{ manifest, want string }{
		"a program that is not built": {"kind: Pod\nimage: ko://knative.dev/serving/cmd/other\n", "cmd/other"},
		"no Envoy":                    {"kind: Pod\n", "envoy"},
		"no ConfigMap to set":         {"kind: Pod\nimage: docker.io/envoyproxy/envoy:v1\n", "config-"},
		"no YAML":                     {"image: docker.io/envoyproxy/envoy:v1\n\t- a", "read a manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render([]byte(test.manifest), allImages(), defaultGrace)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestVersionOfAProgramIsItsModules(t *testing.T) {
	b := &built{Envoy: "1.40.0", Modules: map[string]module{
		"knative.dev/serving": {Version: "v0.48.0"}, "knative.dev/net-kourier": {Version: "v0.48.1"}}}
	for program, want := range map[string]string{"queue": "v0.48.0", "kourier": "v0.48.1", "envoy": "v1.40.0"} {
		if got := b.version(program); got != want {
			t.Errorf("%s: %s, want %s", program, got, want)
		}
	}
}

func TestRunRefusesWrongCommandLines(t *testing.T) {
	for _, args := range [][]string{nil, {"start"}, {"install"}, {"install", "--cluster", "/nonexistent/cluster.json"},
		{"build", "more"}, {"install", "--cluster"}} {
		if err := run(t.Context(), args, os.Stderr); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
