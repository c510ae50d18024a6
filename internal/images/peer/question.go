// SPDX-License-Identifier: Apache-2.0

package peer

// question asks the index which nodes have a blob.
type question struct {
	size     uint64
	answered chan struct{}
}
