// SPDX-License-Identifier: Apache-2.0

// Package examples has no code. Its tests check that the manifests for Kubernetes decode strictly, and that the objects
// they refer to exist. The manifests for one machine are tested in internal/machine/manifest.
package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
)

func TestKubernetesExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("only %d examples: %v", len(files), err)
	}
	services := map[string]*v1alpha1.WangellService{}
	var ingresses []*networkingv1.Ingress
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects := map[string]bool{} // of this file, as KIND/NAME
		var wgs []*v1alpha1.WangellService
		for _, doc := range bytes.Split(content, []byte("\n---\n")) {
			object, name := decode(t, file, doc)
			switch o := object.(type) {
			case *v1alpha1.WangellService:
				wgs = append(wgs, o)
				services[name] = o
			case *networkingv1.Ingress:
				ingresses = append(ingresses, o)
			case *corev1.PersistentVolumeClaim:
				objects["PersistentVolumeClaim/"+name] = true
			case *corev1.ConfigMap:
				objects["ConfigMap/"+name] = true
			}
		}
		for _, s := range wgs {
			checkService(t, file, s, objects)
		}
	}
	for _, i := range ingresses {
		backend := i.Spec.Rules[0].HTTP.Paths[0].Backend.Service
		if s := services[backend.Name]; s == nil || s.Spec.Port != backend.Port.Number {
			t.Errorf("ingress %s: there is no service %s with port %d", i.Name, backend.Name, backend.Port.Number)
		}
	}
}

// decode reads a document of a kind that the examples use, and returns it with its name. A field that its kind
// does not have fails the test.
func decode(t *testing.T, file string, doc []byte) (object any, name string) {
	t.Helper()
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(doc, &head); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	switch kind := head.APIVersion + "/" + head.Kind; kind {
	case v1alpha1.GroupVersion.String() + "/" + v1alpha1.Kind:
		object = &v1alpha1.WangellService{}
	case "v1/PersistentVolumeClaim":
		object = &corev1.PersistentVolumeClaim{}
	case "v1/ConfigMap":
		object = &corev1.ConfigMap{}
	case "networking.k8s.io/v1/Ingress":
		object = &networkingv1.Ingress{}
	default:
		t.Fatalf("%s: unknown kind %s", file, kind)
	}
	if err := yaml.UnmarshalStrict(doc, object); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	return object, head.Name
}

// checkService validates a service as the operator does, and looks for the claims and ConfigMaps that it mounts.
func checkService(t *testing.T, file string, s *v1alpha1.WangellService, objects map[string]bool) {
	t.Helper()
	v1alpha1.Default(s)
	if errs := v1alpha1.ValidateCluster(s); len(errs) > 0 {
		t.Errorf("%s: %v", file, errs)
	}
	mounted := map[string]bool{}
	for _, m := range s.Spec.VolumeMounts {
		mounted[m.Name] = true
	}
	for _, v := range s.Spec.Volumes {
		if !mounted[v.Name] {
			t.Errorf("%s: the volume %s is not mounted", file, v.Name)
		}
		if claim := v.PersistentVolumeClaim; claim != nil && !objects["PersistentVolumeClaim/"+claim.ClaimName] {
			t.Errorf("%s: there is no claim %s", file, claim.ClaimName)
		}
		if cm := v.ConfigMap; cm != nil && !objects["ConfigMap/"+cm.Name] {
			t.Errorf("%s: there is no ConfigMap %s", file, cm.Name)
		}
	}
}
