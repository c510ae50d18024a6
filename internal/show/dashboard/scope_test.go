// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

// some is the Scope of those who may see some namespaces, of those that were judged.
type some struct {
	Source
	judged map[string]bool
}

func (some) Everything() bool { return false }
func (s some) Sees(namespace string) (yes, known bool) {
	yes, known = s.judged[namespace]
	return yes, known
}

func in(namespace string, s status.Status) status.Status {
	s.Service.Namespace = namespace
	return s
}

func TestScopeHidesAllOfOtherNamespaces(t *testing.T) {
	b := newBoard()
	red, blue := in("red", warm("a", 2)), in("blue", warm("a", 2))
	m := at(0, red, blue)
	m.wakes = []lifecycle.Waterfall{woken("red/a", 1, 1), woken("blue/a", 1, 1)}
	m.pressure = []status.Pressure{{Message: "a node is full"}}
	for _, service := range []v1alpha1.Key{"red/a", "blue/a", "gone/a", ""} {
		b.events.add(status.Event{Kind: status.EventReport, Service: service, Text: "of " + string(service)})
	}
	first := b.next(m)
	red.Traffic.NewFlows, blue.Traffic.NewFlows = 5, 7
	second := b.next(at(1, red, blue))
	third := b.next(at(2))
	text := func(v any) string {
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(j)
	}
	sees := some{judged: map[string]bool{"red": true, "blue": false}}
	for name, tick := range map[string]Tick{"first": first, "second": second, "third": third} {
		got := text(tick.of(sees))
		for _, secret := range []string{"blue", "full", `"of "`, "gone/"} {
			if strings.Contains(got, secret) {
				t.Errorf("%s has %q: %s", name, secret, got)
			}
		}
	}
	if got := first.of(sees); len(got.Services) != 1 || len(got.Wakes) != 1 || len(got.Events) != 1 {
		t.Errorf("first: %+v", got)
	}
	id := first.of(sees).Services[0].ID
	if got := second.of(sees).Loads; len(got) != 1 || got[0][0] != float64(id) || got[0][2] != 5 {
		t.Errorf("second: %+v of %+v", got, second)
	}
	if got := third.of(sees).Gone; !slices.Equal(got, []int{id}) || len(third.Gone) != 2 {
		t.Errorf("third: %v of %+v", got, third)
	}
	if got := text(first.of(whole{})); got != text(first) {
		t.Errorf("who may see everything: %s", got)
	}
}

// changing is a Config.Of whose answer changes.
type changing struct {
	err   atomic.Pointer[httpapi.Error]
	scope atomic.Pointer[some]
	asked atomic.Int32
}

func (c *changing) of(*http.Request) (Scope, error) {
	c.asked.Add(1)
	if err := c.err.Load(); err != nil {
		return nil, err
	}
	return *c.scope.Load(), nil
}

func TestStreamFollowsWhatItsUserMaySee(t *testing.T) {
	c := &changing{}
	judge := func(red, blue bool) { c.scope.Store(&some{judged: map[string]bool{"red": red, "blue": blue}}) }
	judge(true, false)
	d := New(Config{Source: newFake(in("red", warm("a", 1)), in("blue", warm("a", 1))), Of: c.of})
	d.hub.every, d.renewEvery = 10*time.Millisecond, 20*time.Millisecond
	s := httptest.NewServer(d.Handler(false))
	t.Cleanup(func() { d.Close(); s.Close() })
	r := bufio.NewReader(ask(t, "GET", s.URL+"/api/stream").Body)
	all := func() string {
		var names []string
		for name, data := next(t, r); ; name, data = next(t, r) {
			if name != "all" {
				continue
			}
			var a All
			if err := json.Unmarshal([]byte(data), &a); err != nil {
				t.Fatal(err)
			}
			for _, row := range a.Services {
				names = append(names, row.Namespace)
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
	}
	if got := all(); got != "red" {
		t.Errorf("first: %s", got)
	}
	judge(true, true)
	if got := all(); got != "blue red" {
		t.Errorf("with more rights: %s", got)
	}
	judge(false, true)
	if got := all(); got != "blue" {
		t.Errorf("with fewer rights: %s", got)
	}
	// An API server that is away changes nothing.
	c.err.Store(&httpapi.Error{Code: http.StatusServiceUnavailable})
	for before := c.asked.Load(); c.asked.Load() < before+3; {
		if name, _ := next(t, r); name != "tick" {
			t.Errorf("while the API server is away: %s", name)
		}
	}
	c.err.Store(&httpapi.Error{Code: http.StatusUnauthorized})
	if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if resp := ask(t, "GET", s.URL+"/api/stream"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("afterwards: %s", resp.Status)
	}
}
