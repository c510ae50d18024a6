// SPDX-License-Identifier: Apache-2.0

// Package need skips tests whose requirements the machine does not meet. Where CI is set to true, as CI systems do, an
// unmet requirement fails the test instead: a test that did not run has not passed. hack/gotest lists the skipped tests
// at the end of a run.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Reasons of skips that CI accepts begin with one of these.
const (
	onDemand = "runs on demand: "
	notShort = "not run with -short: "
	noFUSE   = "no FUSE here: "
)

// Root skips a test that does not run as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Unmet(t, "needs root")
	}
}

// RootMain exits with an error unless the process runs as root. It is for a TestMain without which no test can run:
// a package that passes although nothing ran would mislead.
func RootMain(what string) {
	if os.Geteuid() != 0 {
		fmt.Fprintf(os.Stderr, "%s need root (network namespaces, eBPF): run them with sudo, or with make\n", what)
		os.Exit(1)
	}
}

// Program skips a test unless the program is in PATH. The package is the Debian package that installs it.
func Program(t testing.TB, program, debianPackage string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		Unmet(t, "needs %s: apt-get install %s", program, debianPackage)
	}
}

// FUSE skips a test on a machine without FUSE: in CI too, because containers, as CI systems run, often lack the device.
func FUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("%s%v", noFUSE, err)
	}
	f.Close()
}

// Unmet skips the test, or fails it in CI, for a requirement that the machine does not meet. It does not return.
func Unmet(t testing.TB, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatalf("cannot run here, and no test may be skipped in CI: %s", reason)
	}
	t.Skip(reason)
}

// Chosen returns the value of an environment variable that turns a test on, and skips the test while it is not set: in
// CI too, as CI chooses its tests itself. The hint says what to set it to.
func Chosen(t testing.TB, variable, hint string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		t.Skipf("%sset %s to %s", onDemand, variable, hint)
	}
	return value
}

// ErofsContainerd returns a containerd that can unpack for the snapshotter erofs, and skips the test, as Chosen, while
// none is chosen. make erofs chooses that of the test cluster.
func ErofsContainerd(t testing.TB) string {
	t.Helper()
	return Chosen(t, "WANGELL_TEST_CONTAINERD", "a containerd 2.2.3 or later, as make cluster-build makes it")
}

// Long skips a test with -short, for tests that take minutes. The reason says what takes so long.
func Long(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skip(notShort + reason)
	}
}
