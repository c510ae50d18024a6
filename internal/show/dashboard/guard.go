// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"wangell.loutres.me/internal/base/ownhost"
)

// Guard admits users with a random token, on an address of this machine. The token is in the URL that the program
// prints; the first request exchanges it for a cookie, so that it is in no later URL.
type Guard struct {
	next   http.Handler
	addr   net.Addr
	token  string
	cookie string

	mu      sync.Mutex
	tickets map[string]bool
}

// NewGuard returns a guard for a handler that is served at an address.
func NewGuard(next http.Handler, addr net.Addr) *Guard {
	// Browsers send cookies to every port of a host: each instance has a name of its own.
	_, port, _ := net.SplitHostPort(addr.String())
	return &Guard{next: next, addr: addr, token: rand.Text(), cookie: "wangell-" + port, tickets: map[string]bool{}}
}

// URL returns the address of the dashboard with the token.
func (g *Guard) URL() string { return g.url(g.token) }

// TicketURL returns an address that works once: every user of a machine can read the command line of a browser.
func (g *Guard) TicketURL() string {
	ticket := rand.Text()
	g.mu.Lock()
	g.tickets[ticket] = true
	g.mu.Unlock()
	return g.url(ticket)
}

func (g *Guard) url(token string) string {
	host := g.addr.String()
	if a, err := netip.ParseAddrPort(host); err == nil && a.Addr().IsUnspecified() {
		host = net.JoinHostPort("127.0.0.1", strings.TrimPrefix(host[strings.LastIndex(host, ":"):], ":"))
	}
	u := url.URL{Scheme: "http", Host: host, Path: "/", RawQuery: url.Values{"token": {token}}.Encode()}
	return u.String()
}

// ServeHTTP implements http.Handler.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !ownhost.IsAddress(r.Host) {
		plain(w, http.StatusMisdirectedRequest, "Wangell answers at an address of this machine or localhost, not at this "+
			"name.")
		return
	}
	if token := r.URL.Query().Get("token"); token != "" && r.URL.Path == "/" && r.Method == http.MethodGet {
		if !g.admits(token) {
			g.refuse(w)
			return
		}
		http.SetCookie(w, &http.Cookie{
			Name: g.cookie, Value: g.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		})
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	if c, err := r.Cookie(g.cookie); err != nil || !equal(c.Value, g.token) {
		g.refuse(w)
		return
	}
	g.next.ServeHTTP(w, r)
}

// admits reports whether the token of a URL is the right one, or an unused ticket.
func (g *Guard) admits(token string) bool {
	if equal(token, g.token) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	valid := g.tickets[token]
	delete(g.tickets, token)
	return valid
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (g *Guard) refuse(w http.ResponseWriter) {
	plain(w, http.StatusUnauthorized, "This dashboard opens with the whole address that wangell has printed, with its "+
		"token. 'sudo wangell dashboard', or on a cluster 'kubectl wangell dashboard', prints a new one.")
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, text, code)
}
