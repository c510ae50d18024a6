// SPDX-License-Identifier: Apache-2.0

package ownhost

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listeners are the files of the product with a server for HTTP, and what keeps web pages away from it. A page cannot
// name a socket in a folder, and has no certificate or token of a client.
var listeners = map[string]string{
	"cmd/wangell-snapshotter/main.go":            "Guard",
	"internal/images/image/hello/main.go":        "an example of a program, without secrets",
	"internal/images/lazy/failures/failures.go":  "a registry of tests",
	"internal/images/peer/run.go":                "Guard on this machine; certificates of clients between nodes",
	"internal/images/tarserve/server.go":         "Guard",
	"internal/kube/access/serve.go":              "a token or a certificate of the user, over TLS",
	"internal/kube/enrolment/server.go":          "a token in each request",
	"internal/kube/operator/operator.go":         "Guard of the metrics; the health server says no more than ok",
	"internal/kube/tunnel/server.go":             "tunnels to internal/kube/access alone",
	"internal/machine/instance/parts.go":         "Guard",
	"internal/node/http.go":                      "Guard",
	"internal/runtime/runtimetest/probe/main.go": "a program of tests",
	"internal/show/dashboard/listen.go":          "dashboard.Guard: token, Host and Origin",
	"internal/show/httpapi/server.go":            "a socket in a folder",
}

// serves matches what makes a server for HTTP.
var serves = regexp.MustCompile(`http\.Server\{|http\.Serve(TLS)?\(|http\.ListenAndServe|metricsserver\.Options\{`)

// Each server for HTTP is listed here with what keeps web pages away, and has a Guard if it asks nobody for a password.
func TestEachServerKeepsWebPagesAway(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	found := map[string]string{}
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil && serves.Match(text) {
				name, _ := filepath.Rel(root, path)
				found[name] = string(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(listeners)); !slices.Equal(got, want) {
		t.Errorf("servers for HTTP are in\n%s\nlisted are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, by := range listeners {
		if !strings.HasPrefix(by, "Guard") {
			continue
		}
		guarded := false // in the file or beside it, where the handler is made
		beside, _ := filepath.Glob(filepath.Join(root, filepath.Dir(name), "*.go"))
		for _, path := range beside {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			guarded = guarded || !strings.HasSuffix(path, "_test.go") && strings.Contains(string(text), "ownhost.Guard(")
		}
		if !guarded {
			t.Errorf("%s has no Guard", name)
		}
	}
}
