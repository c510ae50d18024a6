// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// tree walks nodes through aliases and merge keys, at most a given number of them: a small file of
// aliases can stand for a tree of any size, and an alias may be inside what it stands for.
type tree struct {
	// left is how many more nodes may be visited.
	left int
}

// maxAliased is how many nodes aliases may add to those that a file has.
const maxAliased = 100_000

// newTree bounds the walk of a text with this many bytes, each of which is one node at most.
func newTree(size int) tree { return tree{left: size + maxAliased} }

// visit counts a node and returns what it stands for; false if there were too many.
func (t *tree) visit(n *yaml.Node) (*yaml.Node, bool) {
	t.left--
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, t.left >= 0 && n != nil
}

// entry is a field of a mapping.
type entry struct{ key, value *yaml.Node }

// fieldSet is the fields of a mapping, each name once, and what is wrong with the mapping.
type fieldSet struct {
	list     []entry
	index    map[string]int // into list; only of a long list
	problems []problem
}

// problem is what is wrong with a mapping; name is that of the field, if it has one.
type problem struct {
	at                 *yaml.Node
	name, fix, message string
}

// longList is from how many fields on a name is looked up in a map.
const longList = 16

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
	} else if len(s.list) == longList {
		s.index = make(map[string]int, 2*longList)
		for i := range s.list {
			s.index[s.list[i].key.Value] = i
		}
	}
}

// maxDepth bounds recursion; a manifest needs less than ten levels.
const maxDepth = 100

func isMerge(key *yaml.Node) bool { return key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" }

// fields returns the fields of a mapping, those of its merge keys (<<) after its own; none of
// anything else. Of fields with the same name, the first counts. False if there are too many.
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
			s.problems = append(s.problems, problem{key, "", "write name: value", "the name of a field must be plain text"})
		} else if isMerge(key) {
			merges = append(merges, value)
		} else if first, twice := s.find(key.Value); !twice {
			s.add(entry{key, value})
		} else if depth == 0 {
			s.problems = append(s.problems, problem{key, key.Value, "remove one of the two",
				"is given twice, first in line " + strconv.Itoa(first.key.Line)})
		}
	}
	for _, m := range merges {
		if !t.merge(m, s, depth+1) {
			return false
		}
	}
	return true
}

// merge adds the fields of the value of a merge key: a mapping or a list of mappings.
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
		s.problems = append(s.problems, problem{at, "", "write <<: *name, the name of an anchor", "nothing to merge here"})
	}
	return true
}

// plain makes of a node what encoding/json makes of the same JSON; false if there are too many nodes.
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

// find returns the node that stands for a field path such as "spec.env[2].name": the value of a
// scalar, the name of anything else; or the deepest of its parents that exists. ok tells whether
// the field itself exists.
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

// cutPath cuts the first name, index or key off a field path.
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
