// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"
)

func TestFilesThatReferToEachOtherAreReported(t *testing.T) {
	var out bytes.Buffer
	circles, err := check([]string{"./testdata/circle"}, false, &out)
	if err != nil {
		t.Fatal(err)
	}
	want := `testdata/circle: files refer to each other in a circle: a.go, b.go
	a.go:9 uses greet of b.go
	b.go:5 uses Pod of a.go
`
	if circles != 1 || out.String() != want {
		t.Errorf("%d circles:\n%s", circles, out.String())
	}
}

func TestEachUseOfACircleIsPrintedOnRequest(t *testing.T) {
	var out bytes.Buffer
	if _, err := check([]string{"./testdata/circle"}, true, &out); err != nil {
		t.Fatal(err)
	}
	if want := "\tb.go:5 uses Pod of a.go\n\tb.go:5 uses name of a.go\n"; !bytes.Contains(out.Bytes(), []byte(want)) {
		t.Errorf("no %q in:\n%s", want, out.String())
	}
}

func TestFilesThatReferOneWayPass(t *testing.T) {
	var out bytes.Buffer
	circles, err := check([]string{"./testdata/tree"}, false, &out)
	if err != nil || circles != 0 {
		t.Errorf("%d circles, error %v:\n%s", circles, err, out.String())
	}
}

func TestACircleOfThreeFilesIsOne(t *testing.T) {
	circles := circlesOf([]use{
		{from: "a", to: "b"}, {from: "b", to: "c"}, {from: "c", to: "a"}, {from: "d", to: "a"}, {from: "b", to: "e"},
	})
	if len(circles) != 1 || len(circles[0]) != 3 {
		t.Errorf("circles: %q", circles)
	}
}

func TestAPackageThatDoesNotCompileIsAnError(t *testing.T) {
	if _, err := check([]string{"./testdata/missing"}, false, &bytes.Buffer{}); err == nil {
		t.Error("a folder that does not exist passed")
	}
}
