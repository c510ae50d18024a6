// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestTagIsTheVersionUnlessTheNameHasOne(t *testing.T) {
	const version = "v1+g0123abc-dirty"
	for name, want := range map[string]string{
		"registry.example.com/wangell":    "registry.example.com/wangell:v1",
		"localhost:5000/wangell":          "localhost:5000/wangell:v1",
		"localhost:5000/wangell:v2":       "localhost:5000/wangell:v2",
		"wangell":                         "wangell:v1",
		"registry.example.com/a/b/wg:dev": "registry.example.com/a/b/wg:dev",
	} {
		if got := tagged(name, version); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}
