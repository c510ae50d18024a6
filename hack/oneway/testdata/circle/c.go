// SPDX-License-Identifier: Apache-2.0

package circle

// Start uses the others, and is used by none.
func Start(p Pod) string { return p.start() }
