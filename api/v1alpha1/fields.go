// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"reflect"
	"strings"
)

// use is a set of the ways in which a field of WangellServiceSpec counts.
type use uint8

const (
	// makesPod marks a field of which another value needs a new pod: it is part of Hash. A *bool must default to false,
	// because false has the hash of no value.
	makesPod use = 1 << iota
	// ofContainer marks a field that describes the main container only, and no other container of the pod. If Container
	// or the Container of Kubernetes has a field of the same name and type, it has the same meaning there.
	ofContainer
	// inTemplate marks a field that cannot be set beside spec.template, which describes the whole pod.
	inTemplate
	// ofRevisions marks a field that cannot be set beside spec.traffic, because such a service has no pods of its own.
	ofRevisions
	// onKubernetes marks a field that one machine does not support.
	onKubernetes
)

// specTable has an entry for each field of WangellServiceSpec. Hash, Supported, the rules of the schema about template
// and traffic, Validate, ValidateCluster, and what makes containers of a spec, are derived from it.
//
// Fields that make a pod are hashed in this order, so they keep their places: append new ones to them.
var specTable = []struct {
	name string // in Go
	uses use
}{
	{"Image", makesPod | ofContainer | inTemplate | ofRevisions},
	{"TargetPort", makesPod},
	{"Command", makesPod | ofContainer | inTemplate | ofRevisions},
	{"Args", makesPod | ofContainer | inTemplate | ofRevisions},
	{"WorkingDir", makesPod | ofContainer | inTemplate | ofRevisions},
	{"Env", makesPod | ofContainer | inTemplate | ofRevisions},
	{"Resources", makesPod | ofContainer | inTemplate | ofRevisions},
	{"Volumes", makesPod | inTemplate | ofRevisions},
	{"VolumeMounts", makesPod | ofContainer | inTemplate | ofRevisions},
	{"SecurityContext", makesPod | ofContainer | inTemplate | ofRevisions},
	{"ServiceAccountName", makesPod | inTemplate | ofRevisions | onKubernetes},
	{"AutomountServiceAccountToken", makesPod | inTemplate | ofRevisions | onKubernetes},
	{"EnableServiceLinks", makesPod | inTemplate | ofRevisions | onKubernetes},
	{"Template", makesPod | ofRevisions | onKubernetes},
	{"Init", makesPod | ofContainer | inTemplate | ofRevisions},
	{"StopSignal", makesPod | ofContainer | inTemplate | ofRevisions},
	{"ReadinessProbe", makesPod | ofContainer | inTemplate | ofRevisions},
	{"StartupProbe", makesPod | ofContainer | inTemplate | ofRevisions},
	{"Containers", makesPod | inTemplate | ofRevisions},
	{"InitContainers", makesPod | inTemplate | ofRevisions},
	{"EnvFrom", makesPod | ofContainer | inTemplate | ofRevisions},
	{"Layer", makesPod | inTemplate | ofRevisions},
	{"Config", makesPod},
	{"ImageVolumes", makesPod | inTemplate | ofRevisions},
	{"Ports", makesPod},

	// These make no pod, so their order has no meaning.
	{"ImagePullPolicy", ofContainer | inTemplate},
	{"ImagePull", ofRevisions},
	{"Sleep", ofRevisions},
	{"Scaling", ofRevisions},
	{"MinReplicas", ofRevisions},
	{"MaxReplicas", ofRevisions},
	{"UpdateStrategy", ofRevisions},
	{"LoadBalancerClass", onKubernetes},
	{"Replicas", onKubernetes},
	{"AppProtocol", onKubernetes},
	{"Service", onKubernetes},
	{"Address", 0},
	{"AllowFrom", 0},
	{"Balancing", 0},
	{"DrainTimeout", 0},
	{"HostAddress", 0},
	{"HostPort", 0},
	{"IdleTimeout", 0},
	{"MaxParked", 0},
	{"MaxParkedPerSource", 0},
	{"Port", 0},
	{"ReadyWhen", 0},
	{"Retries", 0},
	{"SessionAffinity", 0},
	{"Sticky", 0},
	{"TerminationGracePeriodSeconds", 0},
	{"Traffic", 0},
	{"WakeProof", 0},
	{"WakeTimeout", 0},
}

// specField is a field of WangellServiceSpec with its entry in specTable.
type specField struct {
	index int    // in the struct
	name  string // in the document; empty if it is not part of that
	uses  use
}

// of returns the field's value in a spec, which can be set.
func (f specField) of(s *WangellServiceSpec) reflect.Value {
	return reflect.ValueOf(s).Elem().Field(f.index)
}

var (
	// hashedFields are those that make a pod, in the order of specTable.
	hashedFields []specField
	// specFields are those in the document, in the order of the struct.
	specFields []specField
)

func init() {
	spec := reflect.TypeFor[WangellServiceSpec]()
	byIndex := make([]specField, spec.NumField())
	for _, entry := range specTable {
		f, ok := spec.FieldByName(entry.name)
		if !ok {
			panic("v1alpha1: specTable: WangellServiceSpec has no field " + entry.name)
		}
		field := specField{f.Index[0], documentName(f), entry.uses}
		if byIndex[field.index] = field; entry.uses&makesPod != 0 {
			hashedFields = append(hashedFields, field)
		}
	}
	for _, f := range byIndex {
		if f.name != "" {
			specFields = append(specFields, f)
		}
	}
	for _, f := range specFields {
		if f.uses&onKubernetes == 0 {
			supported[spec] = append(supported[spec], f.name)
		}
	}
}

// documentName returns the name of a field in JSON and YAML; empty if it is left out there.
func documentName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return strings.TrimPrefix(name, "-")
}

// fieldsSet returns the names in the document of the fields with a use that are set.
func (s *WangellServiceSpec) fieldsSet(u use) (names []string) {
	for _, f := range specFields {
		if f.uses&u != 0 && !f.of(s).IsZero() {
			names = append(names, f.name)
		}
	}
	return names
}

// SchemaText replaces the lists of fields in a rule of the schema of the spec, or in its message: $hasInTemplate and
// $hasOfRevisions are whether a field is set that cannot be beside template or traffic, and $namesInTemplate names the
// former. The field image is left out of those of the template: it has a rule of its own.
func SchemaText(text string) string {
	inPod, revisions := namesWith(inTemplate, "image"), namesWith(ofRevisions, "")
	last := len(inPod) - 1
	return strings.NewReplacer("$hasInTemplate", anyIsSet(inPod), "$hasOfRevisions", anyIsSet(revisions),
		"$namesInTemplate", strings.Join(inPod[:last], ", ")+" and "+inPod[last]).Replace(text)
}

// PodFields returns the names in the document of the fields of a spec that say what its pods are.
func PodFields() []string {
	return namesWith(makesPod|ofContainer|inTemplate, "")
}

// FieldsOfTemplate returns the names in the document of the fields that cannot be set beside template.
func FieldsOfTemplate() []string { return namesWith(inTemplate, "") }

// FieldsOfRevisions returns the names in the document of the fields that cannot be set beside traffic.
func FieldsOfRevisions() []string { return namesWith(ofRevisions, "") }

// FieldsOnKubernetes returns the names in the document of the fields that one machine refuses.
func FieldsOnKubernetes() []string { return namesWith(onKubernetes, "") }

// namesWith returns the names in the document of the fields with a use, but for one.
func namesWith(u use, except string) (names []string) {
	for _, f := range specFields {
		if f.uses&u != 0 && f.name != except {
			names = append(names, f.name)
		}
	}
	return names
}

// anyIsSet returns a CEL expression: whether any of these fields is set.
func anyIsSet(names []string) string {
	terms := make([]string, len(names))
	for i, name := range names {
		terms[i] = fmt.Sprintf("has(self.%s)", name)
	}
	return "(" + strings.Join(terms, " || ") + ")"
}

// copySame copies each field of the struct from, for which the struct to has one of the same name and type.
func copySame(to, from any) {
	target, source := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range source.NumField() {
		f := target.FieldByName(source.Type().Field(i).Name)
		if v := source.Field(i); f.IsValid() && f.Type() == v.Type() {
			f.Set(v)
		}
	}
}
