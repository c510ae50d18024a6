// SPDX-License-Identifier: Apache-2.0

package httpapi

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

// Dashboard returns a handler that serves the dashboard of the instance with the rights of the client. It admits
// everyone who reaches it.
func (c *Client) Dashboard(actions bool) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = c.base.Scheme, c.base.Host
			r.Out.URL.Path, r.Out.URL.RawPath = dashboardPath(actions)+r.In.URL.Path, ""
			q := r.Out.URL.Query()
			if q.Del("namespace"); c.namespace != "" {
				q.Set("namespace", c.namespace)
			}
			r.Out.URL.RawQuery = q.Encode()
			r.Out.Header.Del("Cookie")        // it is for this handler's guard only
			r.Out.Header.Del("Authorization") // the client has credentials of its own
		},
		Transport: c.http.Transport,
		ErrorLog:  log.New(io.Discard, "", 0), // the page says that the instance does not answer
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			Refuse(w, &Error{Code: http.StatusBadGateway, Text: c.explain(err).Error()})
		},
	}
}
