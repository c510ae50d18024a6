// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"wangell.loutres.me/api/v1alpha1"
)

// header checks kind and apiVersion. It returns false if the document is not a WangellService at all.
func (d *decoder) header(root *yaml.Node) bool {
	root, ok := d.tree.visit(root)
	if !ok || root.Kind != yaml.MappingNode {
		d.fail(root, nil, "begin with apiVersion: "+v1alpha1.APIVersion, "want a %s, got %s", v1alpha1.Kind, describe(root))
		return false
	}
	set, _ := d.tree.fields(root)
	if at, got := d.constant(set, root, "kind", v1alpha1.Kind); at != nil {
		fix := "write kind: " + v1alpha1.Kind
		if strings.HasSuffix(got, "List") {
			fix = "write each " + v1alpha1.Kind + " as its own document, with --- between them"
		}
		d.fail(at, field.NewPath("kind"), fix, "want %s, got %s", v1alpha1.Kind, orNothing(got))
		return false
	}
	if at, got := d.constant(set, root, "apiVersion", v1alpha1.APIVersion); at != nil {
		d.fail(at, field.NewPath("apiVersion"), "write apiVersion: "+v1alpha1.APIVersion,
			"want %s, got %s", v1alpha1.APIVersion, orNothing(got))
	}
	return true
}

// constant checks a field that has only one valid value. It returns nil if the field has it, otherwise the node to
// report and the value found.
func (d *decoder) constant(set *fieldSet, root *yaml.Node, name, want string) (at *yaml.Node, got string) {
	e, ok := set.find(name)
	if !ok {
		return root, ""
	}
	value, ok := d.tree.visit(e.value)
	if ok && value.Kind == yaml.ScalarNode && value.Value == want {
		return nil, ""
	}
	if !ok || value.Kind != yaml.ScalarNode {
		return e.key, ""
	}
	return e.value, value.Value
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return quote(s)
}

// pathOf converts the text of a path.
func pathOf(path string) *field.Path { return field.NewPath(path) }

// covers reports whether a field, one of its parents or one of its children has an error already.
func (d *decoder) covers(path string) bool {
	for _, r := range d.reported {
		if within(path, r) || within(r, path) {
			return true
		}
	}
	return false
}

// within reports whether path is parent or lies inside it. The document itself has an empty path; an error of the
// document is not an error of its fields.
func within(path, parent string) bool {
	rest, ok := strings.CutPrefix(path, parent)
	return ok && parent != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
