// SPDX-License-Identifier: Apache-2.0

// Package tree has files that refer one way. Local names do not count, whatever else has their name.
package tree

func first(second string) string { return second }
