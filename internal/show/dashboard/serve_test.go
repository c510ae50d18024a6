// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/ownhost"
	"wangell.loutres.me/test/testutil/e2e"
)

// serveAt serves a dashboard, and returns it with its address.
func serveAt(t *testing.T, source Source, actions bool) (*Dashboard, string) {
	d := New(Config{Source: source, Version: "v1"})
	mux := http.NewServeMux()
	mux.Handle("/some/prefix/", http.StripPrefix("/some/prefix", d.Handler(actions)))
	s := httptest.NewServer(mux)
	t.Cleanup(func() { d.Close(); s.Close() })
	return d, s.URL + "/some/prefix"
}

// ask sends a request with headers, given as pairs.
func ask(t *testing.T, method, address string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// next reads the next server-sent event.
func next(t *testing.T, r *bufio.Reader) (name, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		case line == "":
			return name, data
		}
	}
}

func TestPageWorksBelowAnyPath(t *testing.T) {
	_, address := serveAt(t, newFake(), false)
	for path, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/app.js": "text/javascript; charset=utf-8", "/app.css": "text/css; charset=utf-8",
		"/icon.svg": "image/svg+xml",
	} {
		resp := ask(t, "GET", address+path)
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != contentType || len(body) < 100 {
			t.Errorf("%s: %s, %s, %d bytes", path, resp.Status, resp.Header.Get("Content-Type"), len(body))
		}
		if p := resp.Header.Get("Content-Security-Policy"); !strings.Contains(p, "script-src 'self'") ||
			strings.Contains(p, "unsafe") {
			t.Errorf("%s: policy %q", path, p)
		}
		if path == "/" && (strings.Contains(string(body), `="/`) || strings.Contains(string(body), "//")) {
			t.Errorf("the page has an absolute address:\n%s", body)
		}
		again := ask(t, "GET", address+path, "If-None-Match", resp.Header.Get("Etag"))
		if again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %s", path, again.Status)
		}
	}
	if resp := ask(t, "GET", address+"/nothing"); resp.StatusCode != 404 {
		t.Errorf("nothing: %s", resp.Status)
	}
}

func TestStreamBeginsWithEverythingAndGoesOn(t *testing.T) {
	d, address := serveAt(t, newFake(warm("web", 2)), false)
	d.hub.every = 10 * time.Millisecond
	resp := ask(t, "GET", address+"/api/stream?service=default/web")
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("%s, %s", resp.Status, got)
	}
	r := bufio.NewReader(resp.Body)
	name, data := next(t, r)
	var all All
	if err := json.Unmarshal([]byte(data), &all); err != nil || name != "all" || len(all.Services) != 1 ||
		all.Watched == nil || len(all.Watched.Pods) != 2 || len(all.Phases) != 12 {
		t.Fatalf("%s: %v: %s", name, err, data)
	}
	for range 3 {
		if name, _ := next(t, r); name != "tick" {
			t.Errorf("%s, want a tick", name)
		}
		var pods Detail
		name, data := next(t, r)
		if err := json.Unmarshal([]byte(data), &pods); err != nil || name != "pods" || pods.Count[0] != 2 {
			t.Errorf("%s: %v: %s", name, err, data)
		}
	}
}

func TestRequestsOfOtherPagesAreRefused(t *testing.T) {
	f := newFake(warm("web", 1))
	_, address := serveAt(t, f, true)
	const sleep = "/api/sleep?service=default/web"
	for _, c := range []struct {
		method, path string
		headers      []string
		want         int
	}{
		{"GET", "/api/about", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"GET", "/api/stream", []string{"Sec-Fetch-Site", "same-site"}, 403}, // another port of this machine
		{"POST", sleep, []string{"Sec-Fetch-Site", "cross-site", actionHeader, "sleep"}, 403},
		{"POST", sleep, []string{"Content-Type", "text/plain"}, 403}, // what a form can send
		{"OPTIONS", sleep, []string{"Origin", "https://evil.example", "Access-Control-Request-Method", "POST"}, 405},
		{"GET", sleep, nil, 405},
		{"POST", "/api/sleep?service=default/none", []string{actionHeader, "sleep"}, 404},
		{"GET", "/api/about", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"GET", "/", []string{"Sec-Fetch-Site", "cross-site"}, 200}, // a link
	} {
		resp := ask(t, c.method, address+c.path, c.headers...)
		if resp.StatusCode != c.want || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s %v: %s, want %d", c.method, c.path, c.headers, resp.Status, c.want)
		}
	}
	if len(f.slept) != 0 {
		t.Fatalf("%v were put to sleep", f.slept)
	}
	resp := ask(t, "POST", address+sleep, actionHeader, "sleep", "Sec-Fetch-Site", "same-origin")
	if resp.StatusCode != 204 || len(f.slept) != 1 {
		t.Errorf("%s, %v", resp.Status, f.slept)
	}
}

func TestWithoutActionsThereAreNone(t *testing.T) {
	f := newFake(warm("web", 1))
	_, address := serveAt(t, f, false)
	if resp := ask(t, "POST", address+"/api/sleep?service=default/web", actionHeader, "sleep"); resp.StatusCode < 400 ||
		len(f.slept) != 0 {
		t.Errorf("%s, %v", resp.Status, f.slept)
	}
}

func TestViewersAreLimited(t *testing.T) {
	d, address := serveAt(t, newFake(), false)
	var viewers []*viewer
	for range maxViewers {
		v, err := d.hub.join("", whole{})
		if err != nil {
			t.Fatal(err)
		}
		viewers = append(viewers, v)
	}
	resp := ask(t, "GET", address+"/api/stream")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %s", resp.Status)
	}
	d.hub.leave(viewers[0])
	if resp := ask(t, "GET", address+"/api/stream"); resp.StatusCode != 200 {
		t.Errorf("after one has left: %s", resp.Status)
	}
}

// It connects again, and gets everything.
func TestSlowViewerIsDisconnected(t *testing.T) {
	h := newHub(newFake(warm("web", 1)))
	defer h.close()
	h.every = time.Hour
	v, err := h.join("", whole{})
	if err != nil {
		t.Fatal(err)
	}
	for range backlog + 1 {
		h.update()
	}
	n := 0
	for range v.out {
		n++
	}
	if n != backlog || len(h.viewers) != 0 {
		t.Errorf("%d messages, %d viewers", n, len(h.viewers))
	}
	h.leave(v)
}

func TestNothingIsSampledForNobody(t *testing.T) {
	h := newHub(newFake(warm("web", 1)))
	defer h.close()
	h.every, h.linger = time.Hour, 0
	v, err := h.join("", whole{})
	if err != nil {
		t.Fatal(err)
	}
	if !h.update() {
		t.Fatal("it ends while somebody watches")
	}
	h.leave(v)
	if h.update() || h.board != nil {
		t.Error("samples are taken for nobody")
	}
	if _, err := h.join("", whole{}); err != nil || h.board == nil {
		t.Errorf("the next one: %v", err)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	d, address := serveAt(t, newFake(), false)
	resp := ask(t, "GET", address+"/api/stream")
	d.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	if resp := ask(t, "GET", address+"/api/stream"); resp.StatusCode != 503 {
		t.Errorf("after the end: %s", resp.Status)
	}
}

func TestGuardLetsInOnlyWithTheToken(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	s := httptest.NewUnstartedServer(nil)
	g := NewGuard(next, s.Listener.Addr())
	s.Config.Handler = g
	s.Start()
	defer s.Close()
	for _, c := range []struct {
		path    string
		headers []string
	}{
		{"/", nil}, {"/?token=wrong", nil}, {"/?token=", nil}, {"/api/stream", nil}, {"/api/stream?token=" + g.token, nil},
		{"/", []string{"Cookie", g.cookie + "=wrong"}}, {"/", []string{"Cookie", "wangell-1=" + g.token}},
		{"/", []string{"Authorization", "Bearer " + g.token}},
	} {
		if resp := ask(t, "GET", s.URL+c.path, c.headers...); resp.StatusCode != 401 ||
			resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s %v: %s, %q", c.path, c.headers, resp.Status, resp.Header.Get("Set-Cookie"))
		}
	}
	resp := ask(t, "GET", g.URL())
	cookie := resp.Header.Get("Set-Cookie")
	if resp.StatusCode != 303 || resp.Header.Get("Location") != "/" || !strings.Contains(cookie, "HttpOnly") ||
		!strings.Contains(cookie, "SameSite=Strict") {
		t.Fatalf("with the token: %s, %q", resp.Status, cookie)
	}
	// DNS rebinding: a name that an attacker has made an address of this machine. The browser sends no cookie there, but
	// nor may the token be tried.
	for _, host := range []string{
		"evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "",
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", g.URL(), nil)
		r.Host = host
		r.AddCookie(&http.Cookie{Name: g.cookie, Value: g.token})
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != http.StatusMisdirectedRequest {
			t.Errorf("host %q: %d", host, w.Code)
		}
	}
	for _, host := range []string{"localhost", "LOCALHOST:1", "127.0.0.1", "[::1]", "[::1]:80", "192.0.2.7:80"} {
		if !ownhost.IsAddress(host) {
			t.Errorf("host %q is refused", host)
		}
	}
}

// As a browser does it.
func TestCookieStandsForTheToken(t *testing.T) {
	d := New(Config{Source: newFake(), Version: "v1"})
	defer d.Close()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := NewGuard(d.Handler(false), l.Addr())
	s := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	jar, _ := cookiejar.New(nil)
	client := http.Client{Jar: jar}
	get := func(address string) int { return e2e.Status(t, &client, address) }
	base := "http://" + l.Addr().String()
	if got := get(base + "/api/about"); got != 401 {
		t.Errorf("before: %d", got)
	}
	if got := get(g.URL()); got != 200 {
		t.Errorf("with the token: %d", got)
	}
	if got := get(base + "/api/about"); got != 200 {
		t.Errorf("after: %d", got)
	}
}

func TestTicketLetsInOnce(t *testing.T) {
	g := NewGuard(http.NotFoundHandler(), &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80})
	ticket := g.TicketURL()
	for i, want := range []int{303, 401} {
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", ticket, nil)); w.Code != want {
			t.Errorf("use %d: %d, want %d", i+1, w.Code, want)
		}
	}
}

func TestURLIsOneThatABrowserReaches(t *testing.T) {
	for addr, want := range map[string]string{"127.0.0.1:80": "127.0.0.1:80", "0.0.0.0:81": "127.0.0.1:81",
		"[::]:82": "127.0.0.1:82", "[::1]:83": "[::1]:83"} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(NewGuard(nil, a).URL())
		if err != nil || u.Host != want {
			t.Errorf("%s: %v, %v", addr, u, err)
		}
		if got, want := Loopback(a), !strings.HasPrefix(addr, "0") && addr != "[::]:82"; got != want {
			t.Errorf("%s is loopback: %v", addr, got)
		}
	}
}
