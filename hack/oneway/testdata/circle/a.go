// SPDX-License-Identifier: Apache-2.0

// Package circle has files that refer to each other.
package circle

// Pod is used by both other files.
type Pod struct{ name string }

func (p Pod) start() string { return greet(p) }
