// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
)

// dashboardPath is the path of the dashboard.
func dashboardPath(actions bool) string {
	if actions {
		return "/dashboard-actions"
	}
	return "/dashboard"
}

// Dashboard returns a handler that serves the dashboard of the instance. Whoever it lets in, it must check before.
func (c *Client) Dashboard(actions bool) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "wangell"
			r.Out.URL.Path = dashboardPath(actions) + r.In.URL.Path
			r.Out.Header.Del("Cookie") // it is for this handler's guard only
		},
		Transport: c.http.Transport,
		ErrorLog:  log.New(io.Discard, "", 0), // the page says that the instance does not answer
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			Refuse(w, &Error{Code: http.StatusBadGateway, Text: err.Error()})
		},
	}
}
