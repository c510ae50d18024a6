// SPDX-License-Identifier: Apache-2.0

// Command crd writes the CustomResourceDefinition of the API types.
//
// It is what controller-gen makes, with one change: fields of Kubernetes' own types (volumes, the pod template, ...)
// lose their descriptions. With them the definition is larger than what `kubectl apply` can keep in an annotation
// (256 KiB); without any, `kubectl explain` could not explain our own fields.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// kubernetesTypes are the fields of the spec that have types of Kubernetes.
var kubernetesTypes = []string{"template", "env", "resources", "volumes", "volumeMounts", "securityContext"}

func main() {
	out := flag.String("o", ".", "folder for the definition")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "crd:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	var text, messages bytes.Buffer
	gen := exec.Command("go", "tool", "controller-gen", "crd:generateEmbeddedObjectMeta=true", "paths=wangell.loutres.me/api/v1alpha1", "output:stdout")
	gen.Stdout, gen.Stderr = &text, &messages
	if err := gen.Run(); err != nil {
		return fmt.Errorf("controller-gen: %w: %s", err, &messages)
	}
	var crd apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text.Bytes(), &crd); err != nil {
		return fmt.Errorf("what controller-gen wrote: %w", err)
	}
	for _, v := range crd.Spec.Versions {
		spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
		for _, name := range kubernetesTypes {
			p, ok := spec.Properties[name]
			if !ok {
				return fmt.Errorf("spec.%s: there is no such field", name)
			}
			own := p.Description
			strip(&p)
			p.Description = own
			spec.Properties[name] = p
		}
	}
	// A marshalled definition would have an empty status, which kubectl apply then would fight over.
	data, err := yaml.Marshal(struct {
		APIVersion string                                     `json:"apiVersion"`
		Kind       string                                     `json:"kind"`
		Metadata   map[string]any                             `json:"metadata"`
		Spec       apiextensions.CustomResourceDefinitionSpec `json:"spec"`
	}{
		"apiextensions.k8s.io/v1", "CustomResourceDefinition", map[string]any{"name": crd.Name}, crd.Spec,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	const header = "# Made by 'go generate ./api/...' from api/v1alpha1. Do not edit.\n"
	return os.WriteFile(filepath.Join(out, crd.Name+".yaml"), append([]byte(header), data...), 0o644)
}

// strip removes the descriptions of a schema and of all within it.
func strip(s *apiextensions.JSONSchemaProps) {
	s.Description = ""
	for name, p := range s.Properties {
		strip(&p)
		s.Properties[name] = p
	}
	if s.Items != nil && s.Items.Schema != nil {
		strip(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		strip(s.AdditionalProperties.Schema)
	}
}
