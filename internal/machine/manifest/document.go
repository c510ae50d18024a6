// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"wangell.loutres.me/api/v1alpha1"
)

// place is where something is written.
type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// document is one document of a file.
type document struct {
	file string
	size int // of the whole file, in bytes
	root *yaml.Node
}

// find returns the node of a field, or of its deepest existing parent.
func (d *document) find(path string) *yaml.Node {
	t := newTree(d.size)
	n, _ := t.find(d.root, path)
	return n
}

// service is a service with the file that it is from, and its document if that was read in this Load.
type service struct {
	*v1alpha1.WangellService
	file string
	doc  *document
}
