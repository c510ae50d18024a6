// SPDX-License-Identifier: Apache-2.0

package ownhost

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

func TestOnlyNamesThatNoPageHasAreOwn(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1:9464": true, "10.0.0.7": true, "[::1]:9464": true, "[::1]": true, "localhost:9464": true,
		"LOCALHOST": true, "localhost.": true, "": true, "prometheus:9464": true, "host.docker.internal:9464": true,
		"nas.local": true, "nas.home.arpa": true, "wangell.monitoring.svc": true, "box.example.org:9464": true,
		"wangell.monitoring.svc.cluster.local:80": true, "a.localhost": true,
		"evil.example": false, "evil.example:9464": false, "127.0.0.1.evil.example": false, "evil.example.": false,
		"other.example.org": false, "localhost.evil.example": false, "notlocal.example": false, "xlocal.example:1": false,
		"sub.box.example.org": false,
	} {
		if got := own(host, "Box.example.org"); got != want {
			t.Errorf("Host %q: %t, want %t", host, got, want)
		}
	}
}

func TestRequestsForOtherHostsReachNoHandler(t *testing.T) {
	served := 0
	h := Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	ask := func(host string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i, host := range []string{"127.0.0.1:9464", "", machine + ":9464"} {
		if w := ask(host); w.Code != http.StatusOK || served != i+1 {
			t.Errorf("Host %q: %d", host, w.Code)
		}
	}
	if w := ask("evil.example"); w.Code != http.StatusMisdirectedRequest || served != 3 ||
		!strings.Contains(w.Body.String(), "hostname") {
		t.Errorf("a page's host: %d, %q, %d requests served", w.Code, w.Body, served)
	}
}
