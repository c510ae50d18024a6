// SPDX-License-Identifier: Apache-2.0

package need_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/internal/testutil/need"
)

// recorder is a testing.TB that keeps how a test ended.
type recorder struct {
	testing.TB
	skipped, failed bool
}

type ended struct{}

func (r *recorder) Helper()               {}
func (r *recorder) Name() string          { return "TestOfTheRecorder" }
func (r *recorder) Skip(...any)           { r.skipped = true; panic(ended{}) }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic(ended{}) }

// outcome calls f and returns how it ended and which skips it recorded.
func outcome(t *testing.T, f func(t testing.TB)) (r *recorder, records string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("WANGELL_SKIPPED", file)
	r = &recorder{}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (ended{}) {
				panic(p)
			}
		}()
		f(r)
	}()
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return r, string(b)
}

func TestUnmetRequirementSkipsAndIsRecorded(t *testing.T) {
	t.Setenv("CI", "")
	r, records := outcome(t, func(t testing.TB) { need.Program(t, "no-such-program", "no-such-package") })
	if !r.skipped || r.failed {
		t.Errorf("skipped %v, failed %v", r.skipped, r.failed)
	}
	want := "internal/testutil/need: TestOfTheRecorder: needs no-such-program: apt-get install no-such-package\n"
	if records != want {
		t.Errorf("recorded %q, want %q", records, want)
	}
}

func TestUnmetRequirementFailsInCI(t *testing.T) {
	t.Setenv("CI", "true")
	r, records := outcome(t, func(t testing.TB) { need.Unmet(t, "needs %s", "luck") })
	if r.skipped || !r.failed || records != "" {
		t.Errorf("skipped %v, failed %v, recorded %q", r.skipped, r.failed, records)
	}
}

func TestTestOnDemandIsSkippedInCIToo(t *testing.T) {
	t.Setenv("CI", "true")
	chosen := func(t testing.TB) { need.Chosen(t, "WANGELL_TEST_OF_NEED", "anything") }
	if r, records := outcome(t, chosen); !r.skipped || !strings.Contains(records, "WANGELL_TEST_OF_NEED") {
		t.Errorf("skipped %v, recorded %q", r.skipped, records)
	}
	t.Setenv("WANGELL_TEST_OF_NEED", "yes")
	if r, records := outcome(t, chosen); r.skipped || records != "" {
		t.Errorf("chosen, and skipped: %v, recorded %q", r.skipped, records)
	}
}
