// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"
	"testing"

	"wangell.loutres.me/internal/status"
)

func TestOutputIsSafeToPrint(t *testing.T) {
	got := printable("first\nsecond\x1b[2J\x07\tü\nthird\n\n", 2)
	if strings.Join(got, "|") != "second[2J\tü|third" {
		t.Errorf("%q", got)
	}
	if got := printable("\n", 2); got != nil {
		t.Errorf("%q", got)
	}
}

func TestServicesAreNamedAsTheControllerResolvesNames(t *testing.T) {
	var all []status.Status
	for _, key := range []string{"red/a", "blue/a", "red/b", "blue/c", "default/c"} {
		var s status.Status
		s.Service.Namespace, s.Service.Name, _ = strings.Cut(key, "/")
		all = append(all, s)
	}
	for name, want := range map[string]string{
		"red/a":  "red/a",
		"b":      "red/b",
		"c":      "default/c",
		"a":      `service "a": there are several: [red/a blue/a]: name one with its namespace`,
		"d":      `service "d": not found`,
		"blue/b": `service "blue/b": not found`,
	} {
		s, err := Named(all, name)
		got := s.Service.Namespace + "/" + s.Service.Name
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
