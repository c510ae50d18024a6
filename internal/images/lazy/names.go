// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/stargz-snapshotter/metadata"
)

// replaced is what JSON has in place of bytes that are not UTF-8.
const replaced = "\ufffd"

// errName is why a layer is not mounted: its table of contents has other names than its archive.
var errName = errors.New("a name in it was not UTF-8, and is another one in its table of contents: it is pulled whole")

// checkNames refuses a table of contents that may have other names than the archive of its layer: the table is JSON,
// which cannot have all names.
func checkNames(tree metadata.Reader) error {
	return checkBelow(tree, tree.RootID(), "", map[uint32]bool{})
}

func checkBelow(tree metadata.Reader, id uint32, path string, seen map[uint32]bool) error {
	if seen[id] { // a hard link
		return nil
	}
	seen[id] = true
	attr, err := tree.GetAttr(id)
	if err != nil {
		return err
	}
	if strings.Contains(attr.LinkName, replaced) {
		return fmt.Errorf("%w: %s, to %s", errName, path, attr.LinkName)
	}
	for name := range attr.Xattrs {
		if strings.Contains(name, replaced) {
			return fmt.Errorf("%w: %s, attribute %s", errName, path, name)
		}
	}
	if !attr.Mode.IsDir() {
		return nil
	}
	var below error
	err = tree.ForeachChild(id, func(name string, child uint32, _ os.FileMode) bool {
		if strings.Contains(name, replaced) {
			below = fmt.Errorf("%w: %s/%s", errName, path, name)
		} else {
			below = checkBelow(tree, child, path+"/"+name, seen)
		}
		return below == nil
	})
	return errors.Join(below, err)
}
