// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"strings"
	"testing"
)

// A kernel without tcx fails to load the gate with messages of the verifier; the reason is named beside them.
func TestOldKernelIsNamedAsTheReason(t *testing.T) {
	for release, want := range map[string]string{
		"6.1.0-44-amd64":       "Linux 6.1.0-44-amd64 is too old: boot Linux 6.6 or later",
		"5.14.0-503.el9":       "is too old",
		"6.6.0":                "wangell doctor",
		"6.12.117+deb13-amd64": "wangell doctor",
		"7.0-rc1":              "wangell doctor",
		"":                     "wangell doctor",
	} {
		if got := loadHint(release); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
}
