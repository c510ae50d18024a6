// SPDX-License-Identifier: Apache-2.0

package operator

// setPointer sets a field that has no value.
func setPointer[T any](field **T, value *T) {
	if *field == nil {
		*field = value
	}
}

// with returns a map with a value more, which is m unless that is nil.
func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
