// SPDX-License-Identifier: Apache-2.0

package tree

// Second uses first.
func Second() string { return first("second") }

// Fourth refers to a generated file, which refers back.
func Fourth() string { return third() }
