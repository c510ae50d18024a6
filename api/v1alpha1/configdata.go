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

// References yields the references of all containers and volumes of a spec.
func (s *WangellServiceSpec) References(yield func(Reference) bool) {
	list := envReferences(specPath, s.EnvFrom, s.Env)
	for i := range s.InitContainers {
		c := &s.InitContainers[i]
		list = append(list, envReferences(specPath.Child("initContainers").Index(i), c.EnvFrom, c.Env)...)
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		list = append(list, envReferences(specPath.Child("containers").Index(i), c.EnvFrom, c.Env)...)
	}
	for i := range s.Volumes {
		if c := s.Volumes[i].config(); c != nil {
			list = append(list, c.references(specPath.Child("volumes").Index(i))...)
		}
	}
	for _, r := range list {
		if !yield(r) {
			return
		}
	}
}

func envReferences(p *field.Path, from []corev1.EnvFromSource, env []corev1.EnvVar) (list []Reference) {
	add := func(p *field.Path, kind, name, key string, optional *bool) {
		r := Reference{Field: p.Child("name"), Kind: kind, Name: name, Key: key, Optional: isTrue(optional), Env: true}
		if key != "" {
			r.KeyField = p.Child("key")
		}
		list = append(list, r)
	}
	for i, f := range from {
		p := p.Child("envFrom").Index(i)
		if r := f.SecretRef; r != nil {
			add(p.Child("secretRef"), KindSecret, r.Name, "", r.Optional)
		}
		if r := f.ConfigMapRef; r != nil {
			add(p.Child("configMapRef"), KindConfigMap, r.Name, "", r.Optional)
		}
	}
	for i, v := range env {
		if v.ValueFrom == nil {
			continue
		}
		p := p.Child("env").Index(i).Child("valueFrom")
		if r := v.ValueFrom.SecretKeyRef; r != nil {
			add(p.Child("secretKeyRef"), KindSecret, r.Name, r.Key, r.Optional)
		}
		if r := v.ValueFrom.ConfigMapKeyRef; r != nil {
			add(p.Child("configMapKeyRef"), KindConfigMap, r.Name, r.Key, r.Optional)
		}
	}
	return list
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

// Environment returns the variables of the main container with the values that they have on one machine, as kubelet
// computes them: those of envFrom, later sources winning, and then those of env, in which $(NAME) stands for the value
// of a variable before it.
func (s *WangellServiceSpec) Environment() []corev1.EnvVar {
	values := map[string]string{}
	var env []corev1.EnvVar
	set := func(name, value string) {
		values[name] = value
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	for _, f := range s.EnvFrom {
		var from map[string][]byte
		if r := f.SecretRef; r != nil {
			from, _ = s.Config.object(KindSecret, r.Name)
		} else if r := f.ConfigMapRef; r != nil {
			from, _ = s.Config.object(KindConfigMap, r.Name)
		}
		for _, key := range slices.Sorted(maps.Keys(from)) {
			set(f.Prefix+key, string(from[key]))
		}
	}
	for _, v := range s.Env {
		value, ok := expand(v.Value, values), true
		if v.ValueFrom != nil {
			value, ok = s.Config.valueOf(v.ValueFrom)
		}
		if ok {
			set(v.Name, value)
		}
	}
	return env
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

// ExpandArguments returns command or args of the main container with the values of env for $(NAME), as kubelet does.
func ExpandArguments(words []string, env []corev1.EnvVar) []string {
	values := map[string]string{}
	for _, v := range env {
		values[v.Name] = v.Value
	}
	out := slices.Clone(words)
	for i := range out {
		out[i] = expand(out[i], values)
	}
	return out
}

// expand replaces $(NAME) by the value of a variable that exists, and $$ by $, which keeps $$(NAME) from being
// replaced. Everything else stays. Kubernetes documents it as "dependent environment variables".
func expand(text string, values map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		text = rest
		if strings.HasPrefix(rest, "$") {
			text = rest[1:]
			out.WriteByte('$')
			continue
		}
		if name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")"); closed && rest[0] == '(' {
			if value, known := values[name]; known {
				out.WriteString(value)
				text = after
				continue
			}
		}
		out.WriteByte('$')
	}
}
