// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"wangell.loutres.me/api/v1alpha1"
)

// header checks what the document is. It returns false where it makes no sense to read on.
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
			fix = "write each " + v1alpha1.Kind + " as a document of its own, with --- between them"
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

// constant returns nil if a field has the one value that is right, else the place for an error and
// what is there.
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

// pathOf makes a path of its text.
func pathOf(path string) *field.Path { return field.NewPath(path) }

// covers tells whether a field, one of its parents or one of its children has an error already.
func (d *decoder) covers(path string) bool {
	for _, r := range d.reported {
		if within(path, r) || within(r, path) {
			return true
		}
	}
	return false
}

// within tells whether a field is another one or inside it. The document itself has an empty path,
// and an error of it is no error of its fields.
func within(path, parent string) bool {
	rest, ok := strings.CutPrefix(path, parent)
	return ok && parent != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
