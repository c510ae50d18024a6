// SPDX-License-Identifier: Apache-2.0

// Package need skips tests whose requirements the machine does not meet, and makes every skip visible.
//
// A skipped test looks like a passed one in the output of go test. So each skip appends a line to the file that
// WANGELL_SKIPPED names, which make test prints last; and where CI is set to true, as CI systems do, an unmet
// requirement fails the test.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// skippedFile is the variable that names the file to which skips are appended.
const skippedFile = "WANGELL_SKIPPED"

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

// Unmet skips the test, or fails it in CI, for a requirement that the machine does not meet. It does not return.
func Unmet(t testing.TB, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatalf("cannot run here, and no test may be skipped in CI: %s", reason)
	}
	record(t, reason)
	t.Skip(reason)
}

// Chosen returns the value of an environment variable that turns a test on, and skips the test while it is not set: in
// CI too, as CI chooses its tests itself. The hint says what to set it to.
func Chosen(t testing.TB, variable, hint string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		reason := fmt.Sprintf("runs on demand: set %s to %s", variable, hint)
		record(t, reason)
		t.Skip(reason)
	}
	return value
}

// Long skips a test with -short, for tests that take minutes. The reason says what takes so long.
func Long(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		reason = "not run with -short: " + reason
		record(t, reason)
		t.Skip(reason)
	}
}

// record appends a skip to the file that the environment names, if it names one.
func record(t testing.TB, reason string) {
	t.Helper()
	file := os.Getenv(skippedFile)
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		t.Fatalf("record that %s is skipped: %v", t.Name(), err)
	}
	defer f.Close()
	dir, _ := os.Getwd() // of the package: go test runs tests there
	if root, err := moduleRoot(dir); err == nil {
		dir = strings.TrimPrefix(strings.TrimPrefix(dir, root), "/")
	}
	if _, err := fmt.Fprintf(f, "%s: %s: %s\n", dir, t.Name(), strings.ReplaceAll(reason, "\n", " ")); err != nil {
		t.Fatalf("record that %s is skipped: %v", t.Name(), err)
	}
}

// moduleRoot returns the folder of go.mod above dir.
func moduleRoot(dir string) (string, error) {
	for at := dir; ; {
		if _, err := os.Stat(at + "/go.mod"); err == nil {
			return at, nil
		}
		i := strings.LastIndexByte(at, '/')
		if i <= 0 {
			return "", fmt.Errorf("no go.mod above %s", dir)
		}
		at = at[:i]
	}
}
