// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

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
