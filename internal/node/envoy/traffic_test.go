// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/netip"
	"testing"
	"time"
)

// split is a service whose requests go to two others, by their percentages. The second one has the tag canary.
func split(t testing.TB, percent ...uint32) Service {
	s := shop(t)
	s.Traffic.Revisions = []Revision{
		{Service: "default/v1", Percent: percent[0]}, {Service: "default/v2", Percent: percent[1], Tag: "canary"},
	}
	return s
}

// revision is a service that gets requests of a split one.
func revision(t testing.TB, name string, pods ...netip.AddrPort) Service {
	s := shop(t, pods...)
	s.Name = "default/" + name
	return s
}

// ask makes a request, and returns the body of the answer and whether it came on another connection than the one
// before.
func ask(t testing.TB, c *http.Client, at netip.AddrPort, header, value string) (body string, anew bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { anew = !i.Reused },
	}), http.MethodGet, fmt.Sprintf("http://%s/", at), nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != "" {
		r.Header.Set(header, value)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v, %s", answer.Status, err, text)
	}
	return string(text), anew
}

func TestRequestsAreSplitByPercentages(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			says := func(text string) *httpPod {
				return newHTTPPod(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
			}
			r := runEnvoy(t)
			v1, v2 := says("v1"), says("v2")
			s, first, second := split(t, 90, 10), revision(t, "v1", v1.at), revision(t, "v2", v2.at)
			r.set(s, first, second)
			c := client(t, http2)
			get(t, c, s.at())
			const n = 1500
			got := map[string]int{}
			for range n {
				body, anew := ask(t, c, s.at(), "", "")
				if got[body]++; anew {
					t.Fatal("the connection was not kept")
				}
			}
			if few := got["v2"]; few < n/10-80 || few > n/10+80 { // 150 with a standard deviation of 12
				t.Errorf("10 %% of %d requests: %v", n, got)
			}
			for range 50 {
				if body, _ := ask(t, c, s.at(), TagHeader, "canary"); body != "v2" {
					t.Fatalf("a request for the tag got %s", body)
				}
			}
			// Answers count to the revisions.
			await(t, "answers of both revisions", func() bool {
				return r.counts.answered("default/v1") >= uint64(got["v1"]) &&
					r.counts.answered("default/v2") >= uint64(got["v2"])+50
			})
			if n := r.counts.answered(s.Name); n > 0 {
				t.Errorf("%d answers of the service itself, which has no pods", n)
			}

			// Other percentages: on the same connection.
			s.Traffic = split(t, 0, 100).Traffic
			r.set(s, first, second)
			row := 0
			await(t, "all requests go to v2", func() bool {
				body, anew := ask(t, c, s.at(), "", "")
				if anew {
					t.Fatal("other percentages have ended the connection")
				}
				if row++; body != "v2" {
					row = 0
				}
				return row == 100
			})
			if body, _ := ask(t, c, s.at(), TagHeader, "other"); body != "v2" {
				t.Errorf("an unknown tag: got %s", body)
			}

			// A revision without pods is asked for at its own address, where the gate wakes it.
			woken := says("woken")
			second.Pods, second.Addr = nil, woken.at
			r.set(s, first, second)
			await(t, "the revision is asked for at its address", func() bool {
				body, _ := ask(t, c, s.at(), "", "")
				return body == "woken"
			})
		})
	}
}

func TestUsersKeepTheirRevision(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	says := func(text string) *httpPod {
		return newHTTPPod(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	first, second := revision(t, "v1", says("v1").at), revision(t, "v2", says("v2").at)
	byHeader, byCookie := split(t, 70, 30), split(t, 70, 30)
	byHeader.Traffic.Sticky.Header = "X-User"
	byCookie.Name, byCookie.Traffic.Sticky = "default/cookies", Sticky{Cookie: "revision", MaxAge: time.Hour}
	r.set(byHeader, byCookie, first, second)

	c := client(t, false)
	get(t, c, byHeader.at())
	const users = 200
	of, got := map[int]string{}, map[string]int{}
	for i := range 3 * users {
		user := i % users
		body, _ := ask(t, c, byHeader.at(), "X-User", fmt.Sprint("user-", user))
		if of[user] == "" {
			of[user] = body
			got[body]++
		}
		if of[user] != body {
			t.Fatalf("user %d got %s, and then %s", user, of[user], body)
		}
	}
	if got["v1"] < users/2 || got["v2"] < users/10 { // the hash of these names does not change
		t.Errorf("30 %% of %d users: %v", users, got)
	}
	// More users of a revision: all that had it still have it.
	byHeader.Traffic.Revisions = []Revision{{Service: "default/v1", Percent: 30}, {Service: "default/v2", Percent: 70}}
	r.set(byHeader, byCookie, first, second)
	moved := func() (n int) {
		for user := range users {
			if body, _ := ask(t, c, byHeader.at(), "X-User", fmt.Sprint("user-", user)); body != of[user] {
				if n++; body != "v2" {
					t.Fatalf("user %d went back to %s", user, body)
				}
			}
		}
		return n
	}
	await(t, "users have moved", func() bool { return moved() > users/5 })

	seen := map[string]bool{}
	for range 40 {
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		user := client(t, false)
		user.Jar = jar
		_, _ = get(t, user, byCookie.at())
		kept, _ := ask(t, user, byCookie.at(), "", "")
		seen[kept] = true
		user.CloseIdleConnections()
		for range 5 {
			if body, _ := ask(t, user, byCookie.at(), "", ""); body != kept {
				t.Fatalf("a client with a cookie got %s, and then %s", kept, body)
			}
		}
	}
	if len(seen) != 2 { // by chance once in a million
		t.Errorf("40 clients all got %v", seen)
	}
}

// A connection that is not HTTP is given to a revision as a whole.
func TestConnectionsAreSplitByPercentages(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	v1, v2 := newHTTPPod(t, ok), newHTTPPod(t, ok)
	s := split(t, 50, 50)
	s.Protocol = TCP
	r.set(s, revision(t, "v1", v1.at), revision(t, "v2", v2.at))
	await(t, "connections of both revisions", func() bool {
		get(t, client(t, false), s.at())
		return v1.requests.Load() > 0 && v2.requests.Load() > 0
	})
}

// await waits until something holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for begin := time.Now(); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal(what + ": not yet after a minute")
		}
	}
}
