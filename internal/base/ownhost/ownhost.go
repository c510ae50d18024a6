// SPDX-License-Identifier: Apache-2.0

// Package ownhost keeps web pages away from HTTP servers that ask nobody for a password. A page whose author lets its
// name point to this machine's address (DNS rebinding) may read what such a server answers; the Host header of the
// browser tells the page's name.
package ownhost

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// private are top-level domains that the public DNS does not have: those of RFC 6761, 6762 and 8375, ICANN's "internal"
// and that of Kubernetes' short names of Services.
var private = []string{"localhost", "local", "internal", "home.arpa", "svc"}

// IsAddress reports whether a Host header is an IP address or localhost, with or without a port.
func IsAddress(hostport string) bool {
	name := nameOf(hostport)
	if name == "localhost" {
		return true
	}
	_, err := netip.ParseAddr(name)
	return err == nil
}

// nameOf returns a Host header without its port, brackets and final dot, in lower case.
func nameOf(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// own reports whether a Host header can be meant for a machine with a name: no page of the Internet has such a host.
func own(hostport, machine string) bool {
	name := nameOf(hostport)
	if name == "" || IsAddress(hostport) || name == nameOf(machine) || !strings.Contains(name, ".") {
		return true
	}
	return slices.ContainsFunc(private, func(domain string) bool { return strings.HasSuffix(name, "."+domain) })
}

// Guard passes requests on whose Host header is an IP address, a name without a dot, one that only private networks
// have, or this machine's own; others are answered with 421 (Misdirected Request). No browser sends a request without a
// Host header.
func Guard(next http.Handler) http.Handler {
	machine, _ := os.Hostname()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if own(r.Host, machine) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "Wangell does not answer at this name, which a web page may have made its own: use an address of this "+
			"machine, localhost, or the name that 'hostname' prints", http.StatusMisdirectedRequest)
	})
}
