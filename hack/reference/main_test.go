// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

func TestCommittedReferenceIsFresh(t *testing.T) {
	want, err := reference("../../api/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/manifest/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/manifest/reference.md is stale: run 'make generate' and commit")
	}
}

func TestRowsHaveTypeLimitsAndDefault(t *testing.T) {
	text, err := reference("../../api/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| `port` | number, 1 to 65535 |  | The TCP port of the service address. Required unless ports is set. |",
		"| `wakeTimeout` | number, 1 to 3600 | 60 | The number of seconds after which a wake fails and ",
		"| `balancing.clientIdleTimeout` | number, 1 to 86400 | 3600, with level Request | ",
		"| `sleep.schedule[].timeZone` | text, at most 64 characters | UTC | ",
		"| `volumes[].persistent.size` | quantity | ",
		"| `status.lastWake.phases[].ms` | number |  | ",
	} {
		if !strings.Contains(text, "\n"+row) {
			t.Errorf("no row %s", row)
		}
	}
	if strings.Contains(text, "`config`") {
		t.Error("a field that is not part of the document has a row")
	}
}

func TestAFolderWithoutTypesIsAnError(t *testing.T) {
	if _, err := reference(t.TempDir()); err == nil {
		t.Error("no error")
	}
}
