// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/show/dashboard"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

// page serves the dashboard of a client, as 'kubectl wangell dashboard' does behind its guard.
func page(t *testing.T, c *httpapi.Client, actions bool) string {
	s := httptest.NewServer(c.Dashboard(actions))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// request sends a request with headers, given as pairs.
func request(t *testing.T, method, url string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// stream is a stream of server-sent events.
type stream struct{ *bufio.Reader }

func watch(t *testing.T, url string) stream {
	t.Helper()
	resp := request(t, "GET", url)
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("%s: %s, %s", url, resp.Status, got)
	}
	return stream{bufio.NewReader(resp.Body)}
}

// next returns the data of the next event with a name; an empty one if the stream ends first.
func (s stream) next(name string) string {
	for found := false; ; {
		line, err := s.ReadString('\n')
		switch data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); {
		case err != nil:
			return ""
		case ok && found:
			return data
		default:
			found = strings.TrimSpace(line) == "event: "+name
		}
	}
}

// seen returns the services of the next event "all".
func (s stream) seen(t *testing.T) (names string, all dashboard.All) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.next("all")), &all); err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, r := range all.Services {
		list = append(list, r.Namespace+"/"+r.Name)
	}
	slices.Sort(list)
	return strings.Join(list, " "), all
}

func TestDashboardShowsTheNamespacesThatAUserMayList(t *testing.T) {
	c := newCluster(t)
	for _, e := range []struct {
		user, namespace, want string
		wakes, pressure       int
	}{
		{"root", "", "red/a red/b team/a team/c", 2, 1},
		{"root", "red", "red/a red/b", 1, 0},
		{"ann", "", "team/a team/c", 1, 0},
		{"ann", "team", "team/a team/c", 1, 0},
		{"eve", "", "", 0, 0},
	} {
		got, all := watch(t, page(t, c.as(e.user, e.namespace), false)+"/api/stream?namespace=red").seen(t)
		if got != e.want || len(all.Wakes) != e.wakes || len(*all.Pressure) != e.pressure {
			t.Errorf("%s in %q: %s, %d wakes, %d pressures", e.user, e.namespace, got, len(all.Wakes), len(*all.Pressure))
		}
	}
	// What is watched is of no use to those who may not see it.
	_, all := watch(t, page(t, c.as("ann", ""), false)+"/api/stream?service=red/a").seen(t)
	if all.Watched != nil {
		t.Errorf("%+v", all.Watched)
	}
	if resp := request(t, "GET", page(t, c.as("ann", "red"), false)+"/api/stream"); resp.StatusCode != 403 {
		t.Errorf("a namespace that ann may not see: %s", resp.Status)
	}
}

// Nobody has to begin anew for a namespace that gets its first service.
func TestDashboardShowsNamespacesThatComeLater(t *testing.T) {
	c := newCluster(t)
	ann := watch(t, page(t, c.as("ann", ""), false)+"/api/stream")
	eve := watch(t, page(t, c.as("eve", ""), false)+"/api/stream")
	ann.seen(t)
	eve.seen(t)
	c.services.more.Store("later/z")
	if got, _ := ann.seen(t); got != "later/z team/a team/c" {
		t.Error(got)
	}
	var tick dashboard.Tick
	for range 3 {
		if err := json.Unmarshal([]byte(eve.next("tick")), &tick); err != nil || len(tick.Services)+len(tick.Loads) > 0 {
			t.Errorf("who sees nothing: %+v, %v", tick, err)
		}
	}
	c.services.events <- status.Event{Kind: status.EventReport, Service: "later/z", Text: "heard"}
	c.services.events <- status.Event{Kind: status.EventReport, Text: "of a node"}
	for tick.Events == nil {
		if err := json.Unmarshal([]byte(ann.next("tick")), &tick); err != nil {
			t.Fatal(err)
		}
	}
	if len(tick.Events) != 1 || tick.Events[0].Text != "heard" {
		t.Errorf("%+v", tick.Events)
	}
}

func TestDashboardRefusesStrangersAndOtherPages(t *testing.T) {
	c := newCluster(t)
	const action, sleep = "Wangell-Action", "/api/sleep?service=team/a"
	for _, e := range []struct {
		user         string
		actions      bool
		method, path string
		headers      []string
		want         int
	}{
		{"root", false, "GET", "/api/about", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"root", false, "GET", "/", nil, 200},
		{"root", false, "GET", "/api/gates?detail=b", nil, 200},
		{"root", false, "GET", "/api/connections", nil, 200},
		{"ann", false, "GET", "/api/gates", nil, 403}, // she may not see all namespaces
		{"ann", false, "GET", "/api/connections", nil, 403},
		{"root", false, "GET", "/api/stream", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"root", true, "POST", sleep, []string{"Sec-Fetch-Site", "cross-site", action, "sleep"}, 403},
		{"root", true, "POST", sleep, nil, 403},                                           // what a form can send
		{"root", false, "POST", sleep, []string{action, "sleep"}, 404},                    // it only reads
		{"ann", true, "POST", sleep, []string{action, "sleep"}, 403},                      // she may not scale
		{"bob", true, "POST", "/api/sleep?service=red/a", []string{action, "sleep"}, 403}, // nor he there
		// Credentials of the page are of no use.
		{"ann", true, "POST", sleep, []string{action, "sleep", "Authorization", "Bearer token-bob"}, 403},
		{"ann", true, "POST", sleep, []string{action, "sleep", "Impersonate-User", "bob"}, 403},
	} {
		resp := request(t, e.method, page(t, c.as(e.user, ""), e.actions)+e.path, e.headers...)
		if resp.StatusCode != e.want {
			t.Errorf("%s: %s %s %v: %s, want %d", e.user, e.method, e.path, e.headers, resp.Status, e.want)
		}
	}
	for name, user := range map[string]string{"stolen": "stolen", "missing": ""} {
		r := c.config(func(*rest.Config) {})
		r.BearerToken = user
		for _, path := range []string{"/", "/api/about", "/api/stream"} {
			if resp := request(t, "GET", page(t, c.client(r, ""), false)+path); resp.StatusCode != 401 {
				t.Errorf("token %s: %s: %s", name, path, resp.Status)
			}
		}
	}
	if c.services.slept.Load() != nil {
		t.Fatal("it was put to sleep")
	}
	resp := request(t, "POST", page(t, c.as("bob", ""), true)+sleep, action, "sleep")
	if resp.StatusCode != 204 || c.services.slept.Load() != v1alpha1.Key("team/a") {
		t.Errorf("bob: %s, %v", resp.Status, c.services.slept.Load())
	}
}

// The page connects again by itself: to the next leader.
func TestDashboardEndsWithTheLeader(t *testing.T) {
	c := newCluster(t)
	stop := c.lead()
	url := page(t, c.as("root", ""), false)
	before := watch(t, url+"/api/stream")
	before.seen(t)
	c.leads.Store(false)
	if resp := request(t, "GET", url+"/api/about"); resp.StatusCode != 503 {
		t.Errorf("a former leader: %s", resp.Status)
	}
	stop()
	for before.next("tick") != "" {
	}
	c.leads.Store(true)
	c.lead()
	if got, _ := watch(t, url+"/api/stream").seen(t); got == "" {
		t.Error("the next leader shows nothing")
	}
}
