// SPDX-License-Identifier: Apache-2.0

package need_test

import (
	"fmt"
	"testing"

	"wangell.loutres.me/test/testutil/need"
)

// recorder is a testing.TB that keeps how a test ended, and why.
type recorder struct {
	testing.TB
	skipped, failed string
}

type ended struct{}

func (r *recorder) Helper() {}

func (r *recorder) Skip(args ...any) {
	r.skipped = fmt.Sprint(args...)
	panic(ended{})
}

func (r *recorder) Skipf(format string, args ...any) { r.Skip(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(ended{})
}

// outcome calls f as a test would.
func outcome(f func(t testing.TB)) *recorder {
	r := &recorder{}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (ended{}) {
				panic(p)
			}
		}()
		f(r)
	}()
	return r
}

func TestUnmetRequirementSkips(t *testing.T) {
	t.Setenv("CI", "")
	r := outcome(func(t testing.TB) { need.Program(t, "no-such-program", "no-such-package") })
	if r.skipped != "needs no-such-program: apt-get install no-such-package" || r.failed != "" {
		t.Errorf("skipped %q, failed %q", r.skipped, r.failed)
	}
}

func TestUnmetRequirementFailsInCI(t *testing.T) {
	t.Setenv("CI", "true")
	r := outcome(func(t testing.TB) { need.Unmet(t, "needs %s", "luck") })
	if r.skipped != "" || r.failed != "cannot run here, and no test may be skipped in CI: needs luck" {
		t.Errorf("skipped %q, failed %q", r.skipped, r.failed)
	}
}

func TestTestOnDemandIsSkippedInCIToo(t *testing.T) {
	t.Setenv("CI", "true")
	chosen := func(t testing.TB) { need.Chosen(t, "WANGELL_TEST_OF_NEED", "anything") }
	if r := outcome(chosen); r.skipped != "runs on demand: set WANGELL_TEST_OF_NEED to anything" || r.failed != "" {
		t.Errorf("skipped %q, failed %q", r.skipped, r.failed)
	}
	t.Setenv("WANGELL_TEST_OF_NEED", "yes")
	if r := outcome(chosen); r.skipped != "" || r.failed != "" {
		t.Errorf("chosen, and skipped %q, failed %q", r.skipped, r.failed)
	}
}
