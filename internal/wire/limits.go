// SPDX-License-Identifier: Apache-2.0

package wire

// Limits that several messages share, in bytes.
const (
	maxNode  = 253                    // a node's or a pod's name
	maxName  = maxNode + 1 + maxLabel // "namespace/name" of a service
	maxNetns = 255                    // path of a network namespace

	maxLabel = 63 // a namespace's or a container's name
)

// MaxReason is the most bytes that a reason or the answer of a probe may have.
const MaxReason = 200

// maxPods is the most pods of a BACKENDS.
const maxPods = 64
