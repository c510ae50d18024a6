// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What clients write of themselves is removed, unless they are trusted proxies.
func TestOnlyTrustedProxiesSayWhoTheirClientsAre(t *testing.T) {
	t.Parallel()
	said := map[string]string{
		"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "shop.example",
		"X-Forwarded-Port": "443", "X-Forwarded-Prefix": "/shop", "Forwarded": "for=192.0.2.1;proto=https",
	}
	for name, c := range map[string]struct {
		trusted []netip.Prefix
		want    map[string]string // regular expressions
	}{
		"nobody": {nil, map[string]string{
			"X-Forwarded-Proto": "http", "X-Forwarded-Host": "", "X-Forwarded-Port": "", "X-Forwarded-Prefix": "",
			"X-Forwarded-For": `[0-9.]+`, "Forwarded": `for=127\.0\.0\.1;proto=http`,
		}},
		"others": {[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, map[string]string{
			"X-Forwarded-Proto": "http", "X-Forwarded-Host": "", "X-Forwarded-For": `[0-9.]+`,
			"Forwarded": `for=127\.0\.0\.1;proto=http`,
		}},
		"the client": {[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8")},
			map[string]string{
				"X-Forwarded-Proto": "https", "X-Forwarded-Host": `shop\.example`, "X-Forwarded-Port": "443",
				"X-Forwarded-Prefix": "/shop", "X-Forwarded-For": `192\.0\.2\.1, ?[0-9.]+`,
				"Forwarded": `for=192\.0\.2\.1;proto=https, ?for=127\.0\.0\.1;proto=http`,
			}},
	} {
		for _, protocol := range []Protocol{Auto, HTTP1} {
			t.Run(fmt.Sprintf("%s trusted, protocol %d", name, protocol), func(t *testing.T) {
				t.Parallel()
				seen := make(chan http.Header, 10)
				r := runEnvoy(t)
				s := shop(t, newHTTPPod(t, func(w http.ResponseWriter, r *http.Request) { seen <- r.Header.Clone() }).at)
				s.TrustedProxies, s.Protocol = c.trusted, protocol
				r.set(s)
				cl := client(t, false)
				get(t, cl, s.at())
				<-seen
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.at().String()+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range said {
					req.Header.Set(k, v)
				}
				a, err := cl.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				a.Body.Close()
				got := <-seen
				for k, want := range c.want {
					// Several lines of a header mean the same as one with commas (RFC 9110, section 5.3).
					if v := strings.Join(got.Values(k), ", "); !regexp.MustCompile("^" + want + "$").MatchString(v) {
						t.Errorf("%s: %q, want %q", k, v, want)
					}
				}
			})
		}
	}
}

// A server that does not know a protocol answers as if it had not been asked to change to it.
func TestUnknownUpgradesAreIgnored(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	s := shop(t, newHTTPPod(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Header.Get("Upgrade"), r.URL.Path)
	}).at)
	r.set(s)
	get(t, client(t, false), s.at())
	for _, upgrade := range []string{"TLS/1.2", "h2c", "websockets", "web", "tcp/2"} {
		c, err := net.Dial("tcp", s.at().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET /a HTTP/1.1\r\nHost: shop\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade)
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusOK || string(body) != " /a" {
			t.Errorf("%s: %s, %q, %v", upgrade, a.Status, body, err)
		}
	}
}

func TestOtherTexts(t *testing.T) {
	others := otherThan([]string{"websocket", "spdy/3.1", "tcp", "tcpx"})
	re := regexp.MustCompile("^(?:" + strings.Join(others, "|") + ")$")
	for text, want := range map[string]bool{
		"websocket": false, "WebSocket": false, "spdy/3.1": false, "SPDY/3.1": false, "tcp": false, "tcpx": false,
		"": true, "w": true, "web": true, "websockets": true, "spdy/3x1": true, "spdy/31": true, "tc": true, "tcpy": true,
		"tcpxx": true, "TLS/1.2": true, "h2c": true,
	} {
		if got := re.MatchString(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
