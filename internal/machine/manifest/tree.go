// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// tree resolves aliases and merge keys while nodes are visited, up to a budget. The budget is needed because a small
// file of aliases can expand to a tree of any size, and an alias may contain itself.
type tree struct {
	// left is how many more nodes may be visited.
	left int
}

// maxAliased is how many nodes aliases may add to those written in the file.
const maxAliased = 100_000

// newTree returns a tree for a text of size bytes, which make at most one node each.
func newTree(size int) tree { return tree{left: size + maxAliased} }

// visit counts a node and resolves it if it is an alias. It returns false once the budget is spent.
func (t *tree) visit(n *yaml.Node) (*yaml.Node, bool) {
	t.left--
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, t.left >= 0 && n != nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// entry is a field of a mapping.
type entry struct{ key, value *yaml.Node }

// fieldSet holds the fields of a mapping, each name once, and the problems found in the mapping.
type fieldSet struct {
	list     []entry
	index    map[string]int // into list; nil while list is short
	problems []problem
}

// problem is a mistake in a mapping. name is the field's, empty if the problem has no field.
type problem struct {
	at                 *yaml.Node
	name, fix, message string
}

// indexedFrom is the number of fields from which names are looked up in a map rather than by a scan.
const indexedFrom = 16

func (s *fieldSet) find(name string) (entry, bool) {
	if s.index != nil {
		if i, ok := s.index[name]; ok {
			return s.list[i], true
		}
		return entry{}, false
	}
	for _, e := range s.list {
		if e.key.Value == name {
			return e, true
		}
	}
	return entry{}, false
}

func (s *fieldSet) add(e entry) {
	s.list = append(s.list, e)
	if s.index != nil {
		s.index[e.key.Value] = len(s.list) - 1
	} else if len(s.list) == indexedFrom {
		s.index = make(map[string]int, 2*indexedFrom)
		for i := range s.list {
			s.index[s.list[i].key.Value] = i
		}
	}
}

// maxDepth bounds recursion; a manifest nests less than ten levels deep.
const maxDepth = 100

func isMerge(key *yaml.Node) bool { return key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" }

// fields returns the fields of a mapping, its own first and then those of its merge keys (<<). The first field of a
// name wins. Other nodes have no fields. fields returns false once the budget is spent.
func (t *tree) fields(n *yaml.Node) (*fieldSet, bool) {
	s := new(fieldSet)
	if n.Kind != yaml.MappingNode {
		return s, true
	}
	return s, t.collect(n, s, 0)
}

func (t *tree) collect(n *yaml.Node, s *fieldSet, depth int) bool {
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if t.left--; t.left < 0 {
			return false
		}
		if key.Kind != yaml.ScalarNode {
			s.problems = append(s.problems, problem{key, "", "write name: value", "a field name must be plain text"})
		} else if isMerge(key) {
			merges = append(merges, value)
		} else if first, twice := s.find(key.Value); !twice {
			s.add(entry{key, value})
		} else if depth == 0 {
			s.problems = append(s.problems, problem{key, key.Value, "remove one of the two",
				"is set twice, first on line " + strconv.Itoa(first.key.Line)})
		}
	}
	for _, m := range merges {
		if !t.merge(m, s, depth+1) {
			return false
		}
	}
	return true
}

// merge adds the fields of a merge key's value, which is a mapping or a list of mappings.
func (t *tree) merge(at *yaml.Node, s *fieldSet, depth int) bool {
	n, ok := t.visit(at)
	if !ok || depth > maxDepth {
		return false
	}
	switch n.Kind {
	case yaml.MappingNode:
		return t.collect(n, s, depth)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if !t.merge(item, s, depth+1) {
				return false
			}
		}
	default:
		s.problems = append(s.problems,
			problem{at, "", "write <<: *name, with the name of an anchor", "nothing to merge here"})
	}
	return true
}

// plain converts a node to what encoding/json would decode the same JSON into. It returns false once the budget is
// spent.
func (t *tree) plain(at *yaml.Node, depth int) (any, bool) {
	n, ok := t.visit(at)
	if !ok || depth > maxDepth {
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		fields, ok := t.fields(n)
		object := make(map[string]any, len(fields.list))
		for _, e := range fields.list {
			if !ok {
				break
			}
			object[e.key.Value], ok = t.plain(e.value, depth+1)
		}
		return object, ok
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i := range n.Content {
			if list[i], ok = t.plain(n.Content[i], depth+1); !ok {
				return nil, false
			}
		}
		return list, true
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), true
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), true
		}
	}
	return n.Value, true
}

// find returns the node to report for a field path such as "spec.env[2].name": the value of a scalar field, the name of
// any other field. If the field does not exist, find returns its deepest existing parent and false.
func (t *tree) find(root *yaml.Node, path string) (n *yaml.Node, ok bool) {
	place, n := root, root
	for path != "" {
		var name string
		if name, path = cutPath(path); name == "" {
			return place, false
		}
		var value, key *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			fields, _ := t.fields(n)
			if e, ok := fields.find(name); ok {
				key, value = e.key, e.value
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(n.Content) {
				key, value = n.Content[i], n.Content[i]
			}
		}
		if value == nil {
			return place, false
		}
		target, ok := t.visit(value)
		if !ok {
			return place, false
		}
		place, n = key, target
		if target.Kind == yaml.ScalarNode {
			place = value
		}
	}
	return place, true
}

// cutPath splits the first name, index or key off a field path.
func cutPath(path string) (name, rest string) {
	path = strings.TrimPrefix(path, ".")
	if strings.HasPrefix(path, "[") {
		name, rest, _ = strings.Cut(path[1:], "]")
		return name, rest
	}
	if end := strings.IndexAny(path, ".["); end >= 0 {
		return path[:end], path[end:]
	}
	return path, ""
}
