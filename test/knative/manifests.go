// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	// ingressClass makes Kourier the ingress.
	ingressClass = "kourier.ingress.networking.knative.dev"
	// domain makes services reachable from outside as SERVICE.NAMESPACE.DOMAIN. Without a domain Knative makes them
	// reachable in the cluster only.
	domain = "knative.example"
	// defaultGrace is Knative's default of scale-to-zero-grace-period.
	defaultGrace = 30 * time.Second
)

// sources are the folders of manifests that make up a release of Serving's core and of Kourier. Serving's repository
// has symbolic links to the folders of networking and caching, but modules have no symbolic links.
var sources = []struct{ module, folder string }{
	{"knative.dev/caching", "config"},
	{"knative.dev/networking", "config"},
	{"knative.dev/serving", "config/core"},
	{"knative.dev/net-kourier", "config"},
}

// object is a Kubernetes object.
type object map[string]any

func (o object) kind() string { s, _ := o["kind"].(string); return s }

func (o object) name() string {
	m, _ := o["metadata"].(map[string]any)
	s, _ := m["name"].(string)
	return s
}

// readManifests reads the modules' manifests.
func readManifests(mods map[string]module) ([]byte, error) {
	var all []string
	for _, s := range sources {
		var files []string
		folder := filepath.Join(mods[s.module].Dir, s.folder)
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && filepath.Ext(path) == ".yaml" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("manifests of %s: %w", s.module, err)
		}
		slices.Sort(files)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("manifests of %s: %w", s.module, err)
			}
			all = append(all, string(data))
		}
	}
	return []byte(strings.Join(all, "\n---\n")), nil
}

var (
	separator  = regexp.MustCompile(`(?m)^---\s*$`)
	koImage    = regexp.MustCompile(`ko://([a-z0-9./-]+)`)
	envoyImage = regexp.MustCompile(`docker\.io/envoyproxy/envoy:\S+`)
)

// render puts the images, and the few settings that differ from the defaults, into manifests. images has a reference
// for every program.
func render(manifests []byte, images map[string]string, grace time.Duration) ([]object, error) {
	byPackage := map[string]string{}
	for program, pkg := range programs {
		byPackage[pkg] = images[program]
	}
	var missing []string
	text := koImage.ReplaceAllStringFunc(string(manifests), func(s string) string {
		image := byPackage[strings.TrimPrefix(s, "ko://")]
		if image == "" {
			missing = append(missing, s)
		}
		return image
	})
	if len(missing) > 0 {
		return nil, fmt.Errorf("the manifests ask for %s, which is not built: add it to programs",
			strings.Join(missing, ", "))
	}
	if !envoyImage.MatchString(text) {
		return nil, fmt.Errorf("no manifest asks for an image docker.io/envoyproxy/envoy")
	}
	text = envoyImage.ReplaceAllLiteralString(text, images["envoy"])
	var objects []object
	for _, part := range separator.Split(text, -1) {
		var o object
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			return nil, fmt.Errorf("read a manifest: %w\n%.400s", err, part)
		}
		if o.kind() != "" {
			objects = append(objects, o)
		}
	}
	settings := map[string]map[string]string{
		"config-network": {"ingress-class": ingressClass},
		"config-domain":  {domain: ""},
	}
	if grace != defaultGrace {
		settings["config-autoscaler"] = map[string]string{"scale-to-zero-grace-period": grace.String()}
	}
	for _, o := range objects {
		values, ok := settings[o.name()]
		if !ok || o.kind() != "ConfigMap" {
			continue
		}
		data, ok := o["data"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("ConfigMap %s has no data", o.name())
		}
		for k, v := range values {
			data[k] = v
		}
		delete(settings, o.name())
	}
	for name := range settings {
		return nil, fmt.Errorf("no manifest has the ConfigMap %s: its settings cannot be changed", name)
	}
	return objects, nil
}

// marshal writes objects as one manifest. JSON is YAML.
func marshal(objects []object) []byte {
	var b bytes.Buffer
	for _, o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			panic(fmt.Sprintf("%s %s was read from YAML and cannot be written: %v", o.kind(), o.name(), err))
		}
		fmt.Fprintf(&b, "---\n%s\n", data)
	}
	return b.Bytes()
}

// split returns the objects that must exist before the others can be created, and the others.
func split(objects []object) (first, rest []object) {
	for _, o := range objects {
		if k := o.kind(); k == "CustomResourceDefinition" || k == "Namespace" {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	return first, rest
}
