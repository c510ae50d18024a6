// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
)

// A web page cannot make the address of a controller its own name and read the metrics.
func TestMetricsOfControllersAreNotForWebPages(t *testing.T) {
	filter, err := guarded(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"10.244.1.7:9464": http.StatusNoContent, "wangell-controller:9464": http.StatusNoContent,
		"metrics.wangell-system.svc.cluster.local:9464": http.StatusNoContent,
		"page.example.com:9464":                         http.StatusMisdirectedRequest,
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d, want %d", host, w.Code, want)
		}
	}
}
