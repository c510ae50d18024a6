// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/readapi"
)

// A mirror is told that only a part is wanted. What it does not have comes from the registry, which is not told so.
func TestAMirrorIsAskedForPartsOnly(t *testing.T) {
	var asked []string
	note := func(name string, answer http.HandlerFunc) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, name+" "+r.Header.Get(readapi.PartsHeader)+" "+r.URL.RawQuery)
			answer(w, r)
		}))
		t.Cleanup(s.Close)
		return s
	}
	mirror := note("mirror", http.NotFound)
	registry := note("registry", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "bytes 2-3/10")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, "cd")
	})
	host := strings.TrimPrefix(registry.URL, "http://")
	from := source{
		hosts: func(string) ([]docker.RegistryHost, error) {
			var list []docker.RegistryHost
			for _, s := range []*httptest.Server{mirror, registry} {
				list = append(list, docker.RegistryHost{
					Client: s.Client(), Scheme: "http", Host: strings.TrimPrefix(s.URL, "http://"), Path: "/v2",
				})
			}
			return list, nil
		},
		ref: reference.Spec{Locator: host + "/team/a", Object: "v1"}, digest: digest.FromString("a"),
	}
	for _, lend := range []bool{true, false} {
		a, err := from.fetch(t.Context(), 2, 4, lend)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		got, err := io.ReadAll(a)
		if err != nil || string(got) != "cd" || a.size != 10 || a.from != fromRegistry {
			t.Errorf("%q of %d from %s, %v", got, a.size, a.from, err)
		}
	}
	query := " ns=" + strings.ReplaceAll(host, ":", "%3A")
	want := []string{
		"mirror " + readapi.PartsAnywhere + query, "registry  ", "mirror " + readapi.PartsHere + query, "registry  ",
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}
