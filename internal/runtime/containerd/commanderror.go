// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"regexp"
	"strings"
)

// CommandError is the error of a command that its container cannot run.
type CommandError struct {
	// NotFound is set if the container has no such program.
	NotFound bool
	// Reason says why it cannot be run, in a few words of the kernel or of runc.
	Reason string

	err error
}

// Error implements error.
func (e *CommandError) Error() string { return e.err.Error() }

// Unwrap returns the error of containerd.
func (e *CommandError) Unwrap() error { return e.err }

// What runc says of a program that it cannot execute, and of a working directory that is not there: "exec:
// \"prog\": stat prog: no such file or directory", "exec /script: exec format error", "chdir to cwd (\"/none\") set in
// config.json failed: no such file or directory". containerd adds ": unknown".
var (
	execFailed  = regexp.MustCompile(`exec:? ("(?:[^"\\]|\\.)*"|/[^:]*): (.*?)(: unknown)?$`)
	chdirFailed = regexp.MustCompile(`(chdir to cwd .*?)(: unknown)?$`)
)

// commandError returns the error of the start of a command as a CommandError, if the command is the reason.
func commandError(err error) error {
	text := err.Error()
	if m := chdirFailed.FindStringSubmatch(text); m != nil {
		return &CommandError{Reason: m[1], err: err}
	}
	m := execFailed.FindStringSubmatch(text)
	if m == nil {
		return err
	}
	reason := m[2]
	if i := strings.LastIndex(reason, ": "); i >= 0 { // it begins with "stat prog"
		reason = reason[i+2:]
	}
	missing := strings.Contains(reason, "executable file not found") ||
		strings.Contains(reason, "no such file or directory")
	return &CommandError{NotFound: missing, Reason: reason, err: err}
}
