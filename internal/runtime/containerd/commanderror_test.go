// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"testing"
)

func TestCommandThatCannotBeRunIsToldFromOtherFaults(t *testing.T) {
	const begin = "OCI runtime exec failed: exec failed: unable to start container process: "
	for text, want := range map[string]CommandError{
		begin + `exec: "none": executable file not found in $PATH: unknown`: {
			NotFound: true, Reason: "executable file not found in $PATH"},
		begin + `exec: "/a: \"b\"": stat /a: "b": no such file or directory: unknown`: {
			NotFound: true, Reason: "no such file or directory"},
		begin + `exec /script: no such file or directory: unknown`: { // its interpreter
			NotFound: true, Reason: "no such file or directory"},
		begin + `exec /bin/other: exec format error`:         {Reason: "exec format error"},
		begin + `exec: "/etc": is a directory: unknown`:      {Reason: "is a directory"},
		begin + `exec: "/etc/x": permission denied: unknown`: {Reason: "permission denied"},
		begin + `chdir to cwd ("/none") set in config.json failed: no such file or directory: unknown`: {
			Reason: `chdir to cwd ("/none") set in config.json failed: no such file or directory`},
	} {
		var got *CommandError
		err := commandError(errors.New(text))
		if !errors.As(err, &got) || got.NotFound != want.NotFound || got.Reason != want.Reason || err.Error() != text {
			t.Errorf("%s: %+v", text, got)
		}
	}
	for _, text := range []string{
		begin + "error executing setns process: exit status 1: unknown", "task 1 not found", "context deadline exceeded",
	} {
		if err := errors.New(text); commandError(err) != err { //nolint:errorlint // the same one
			t.Errorf("%s: %+v", text, commandError(err))
		}
	}
}
