// SPDX-License-Identifier: Apache-2.0

package circle

func greet(p Pod) string { return "hello " + p.name }
