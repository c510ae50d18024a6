// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/buildinfo"
)

const (
	maxBody      = 10 << 10 // bytes of a body that are read, as kubelet does
	maxRedirects = 10
)

// unverified returns a configuration that accepts any certificate, as kubelet's probes do: they check readiness, not
// identity.
func unverified() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// httpGet succeeds with a status from 200 to 399. As with kubelet, certificates are not verified, and a redirect is
// followed on the same host only; one to another host counts as success.
func (p *Prober) httpGet(ctx context.Context, g *corev1.HTTPGetAction) (bool, string, error) {
	u, err := url.Parse(g.Path)
	if err != nil {
		u = &url.URL{Path: g.Path}
	}
	u.Scheme, u.Host = strings.ToLower(string(g.Scheme)), p.target(g.Host, g.Port.IntVal)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, "", err
	}
	for _, h := range g.HTTPHeaders {
		switch {
		case strings.EqualFold(h.Name, "Host"):
			r.Host = h.Value
		case h.Value == "" && (strings.EqualFold(h.Name, "Accept") || strings.EqualFold(h.Name, "User-Agent")):
			r.Header[http.CanonicalHeaderKey(h.Name)] = nil // left out
		default:
			r.Header.Add(h.Name, h.Value)
		}
	}
	setDefault(r.Header, "User-Agent", "wangell-probe/"+buildinfo.Version)
	setDefault(r.Header, "Accept", "*/*")
	transport := &http.Transport{
		DialContext: p.Dial, DisableKeepAlives: true, DisableCompression: true,
		TLSClientConfig: unverified(),
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		switch {
		case next.URL.Hostname() != via[0].URL.Hostname():
			return http.ErrUseLastResponse
		case len(via) >= maxRedirects:
			return errors.New("too many redirects")
		}
		return nil
	}}
	resp, err := client.Do(r)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err // without the URL, which is in the manifest
		}
		return false, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return false, "", err
	}
	ok := resp.StatusCode >= 200 && resp.StatusCode < 400
	answer := fmt.Sprintf("status %d", resp.StatusCode)
	if text := strings.TrimSpace(string(body)); !ok && text != "" {
		answer += ": " + text
	}
	return ok, answer, nil
}

// setDefault sets a header that is neither set nor left out.
func setDefault(h http.Header, name, value string) {
	if _, ok := h[name]; !ok {
		h.Set(name, value)
	}
}

// target returns the address to connect to.
func (p *Prober) target(host string, port int32) string {
	if host == "" {
		host = p.Addr.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
