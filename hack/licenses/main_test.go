// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `MIT License

Permission is hereby granted, free of charge, to any person
obtaining a copy of this software and associated documentation files`

func TestLicensesAreFoundByTheirText(t *testing.T) {
	own, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(own): "Apache-2.0",
		mit:         "MIT",
		"// Permission to use, copy, modify, and/or\n// distribute this software for any purpose with or " +
			"without fee": "ISC",
		"Mozilla Public License Version 2.0 ... GNU Affero General Public License": "MPL-2.0",
		"GNU GENERAL PUBLIC LICENSE\n Version 3":                                   "GPL",
		"All rights reserved.":                                                     "",
	} {
		if got := licenseOf(text); got != want {
			t.Errorf("%.40q: %q, want %q", text, got, want)
		}
	}
}

func TestOtherLicensesAreRefused(t *testing.T) {
	mods := []module{
		{"example.org/fine", "v1.0.0", []string{mit}},
		{"example.org/both", "v1.0.0", []string{mit, "GNU General Public License"}},
		{"example.org/none", "v1.0.0", nil},
		{"example.org/own", "v1.0.0", []string{"All rights reserved."}},
	}
	_, problems := check(mods, map[string]string{"preact": "MIT", "other": "UNLICENSED", "nothing": ""})
	text := strings.Join(problems, "\n")
	for _, name := range []string{"both v1.0.0: GPL", "none v1.0.0: no license", "own v1.0.0: no license", "package other",
		"package nothing"} {
		if !strings.Contains(text, name) {
			t.Errorf("%q is not among the problems:\n%s", name, text)
		}
	}
	if len(problems) != 5 {
		t.Errorf("%d problems:\n%s", len(problems), text)
	}
}

// What is linked has licenses that allow it, and their texts can be handed on.
func TestLicensesOfThePrograms(t *testing.T) {
	t.Chdir("../..")
	file := filepath.Join(t.TempDir(), "texts")
	var out strings.Builder
	if err := run(&out, file); err != nil {
		t.Fatal(err)
	}
	texts, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"github.com/cilium/ebpf", "k8s.io/client-go", "gonum.org/v1/plot", "golang.org/x/sys"} {
		if !strings.Contains(string(texts), "== "+m+" v") {
			t.Errorf("the texts lack that of %s", m)
		}
	}
	if !strings.Contains(out.String(), "Apache-2.0 ") {
		t.Errorf("report %q", out.String())
	}
}
