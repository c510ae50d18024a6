// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kinds of the objects to which a spec refers for values and files.
const (
	KindSecret    = "Secret"
	KindConfigMap = "ConfigMap"
)

// ConfigData is the data of the Secrets and ConfigMaps to which a spec refers: the values by object and key. It is kept
// out of every encoding and message, as it holds secrets.
type ConfigData struct {
	Secrets    map[string]map[string][]byte
	ConfigMaps map[string]map[string][]byte
}

// String and GoString keep the values out of messages.
func (*ConfigData) String() string { return "(hidden)" }

// GoString is like String, for %#v.
func (*ConfigData) GoString() string { return "(hidden)" }

// object returns the values of an object; ok is false if there is no such object.
func (d *ConfigData) object(kind, name string) (values map[string][]byte, ok bool) {
	switch {
	case d == nil:
	case kind == KindSecret:
		values, ok = d.Secrets[name]
	default:
		values, ok = d.ConfigMaps[name]
	}
	return values, ok
}

// Add adds an object.
func (d *ConfigData) Add(kind, name string, values map[string][]byte) {
	objects := &d.ConfigMaps
	if kind == KindSecret {
		objects = &d.Secrets
	}
	if *objects == nil {
		*objects = map[string]map[string][]byte{}
	}
	(*objects)[name] = values
}

// hash returns a hash of the data; empty if there is none.
func (d *ConfigData) hash() string {
	if d == nil || len(d.Secrets)+len(d.ConfigMaps) == 0 {
		return ""
	}
	text, err := json.Marshal([]map[string]map[string][]byte{d.Secrets, d.ConfigMaps}) // sorted by key
	if err != nil {
		panic("v1alpha1: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Reference is a place in a spec that refers to a Secret or a ConfigMap.
//
// +kubebuilder:object:generate=false
type Reference struct {
	// Field is the path of the object's name, such as "spec.env[0].valueFrom.secretKeyRef.name".
	Field *field.Path
	// Kind is KindSecret or KindConfigMap, and Name the object's name in the namespace of the service.
	Kind, Name string
	// Key is a key that the object must have, at the path KeyField; empty if none.
	Key      string
	KeyField *field.Path
	// Optional means that the object, or the key, may be missing.
	Optional bool
	// Env means that the value, or every value without Key, becomes a variable.
	Env bool
}

// CheckReference checks a reference against the data of a spec: the error says what is missing, never a value.
func (d *ConfigData) CheckReference(r Reference) error {
	values, ok := d.object(r.Kind, r.Name)
	switch {
	case !ok && r.Optional:
		return nil
	case !ok:
		return fmt.Errorf("there is no %s %q in this namespace", r.Kind, r.Name)
	case r.Key != "":
		value, ok := values[r.Key]
		if !ok && !r.Optional {
			return fmt.Errorf("the %s %q has no key %q%s", r.Kind, r.Name, r.Key, offerKeys(values))
		}
		values = map[string][]byte{r.Key: value}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if r.Env && bytes.IndexByte(values[key], 0) >= 0 {
			return fmt.Errorf("the value of %q in the %s %q contains a NUL character, which cannot be passed to a process",
				key, r.Kind, r.Name)
		}
	}
	return nil
}

func offerKeys(values map[string][]byte) string {
	if len(values) == 0 {
		return ": it has none"
	}
	return ": its keys are " + strings.Join(slices.Sorted(maps.Keys(values)), ", ")
}

// valueOf returns the value of a key of an object; ok is false if it is missing.
func (d *ConfigData) valueOf(from *corev1.EnvVarSource) (value string, ok bool) {
	var values map[string][]byte
	var key string
	if r := from.SecretKeyRef; r != nil {
		values, _ = d.object(KindSecret, r.Name)
		key = r.Key
	} else if r := from.ConfigMapKeyRef; r != nil {
		values, _ = d.object(KindConfigMap, r.Name)
		key = r.Key
	}
	text, ok := values[key]
	return string(text), ok
}
