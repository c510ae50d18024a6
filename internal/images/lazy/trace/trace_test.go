// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

func TestOldTracesAreForgotten(t *testing.T) {
	root := t.TempDir()
	for i := range 5 {
		d := digest.FromString(fmt.Sprint(i))
		if err := (Layer{Image: fmt.Sprint(i)}).Write(root, d); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(time.Duration(i) * time.Hour)
		if err := os.Chtimes(fileOf(root, d), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := Prune(root, 2); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := Read(root, digest.FromString(fmt.Sprint(i))); (err == nil) != (i >= 3) {
			t.Errorf("trace %d: %v", i, err)
		}
	}
}
