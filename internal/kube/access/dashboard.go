// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"

	"wangell.loutres.me/internal/show/dashboard"
	"wangell.loutres.me/internal/show/httpapi"
)

// dashboard serves the dashboard to users whom guard has admitted. Each sees what newScoped allows.
func (s *Server) dashboard(actions bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		services := s.cfg.Services()
		if services == nil {
			httpapi.Refuse(w, errNotLeading)
			return
		}
		b := s.boards.of(services, s.newDashboard)
		if r.URL.Path == dashboard.StreamPath {
			user, ok := r.Context().Value(userKey{}).(*authenticationv1.UserInfo)
			if !ok || !s.streams.Take(user.Username) {
				httpapi.Refuse(w, errLimit)
				return
			}
			defer s.streams.Give(user.Username)
		}
		if actions {
			b.actions.ServeHTTP(w, r)
		} else {
			b.reads.ServeHTTP(w, r)
		}
	})
}

// newDashboard makes the dashboard of services.
func (s *Server) newDashboard(services Services) *dashboard.Dashboard {
	return dashboard.New(dashboard.Config{
		Source: services, Version: s.cfg.Version,
		Of: s.scope,
	})
}

// scope returns what scoped does, for package dashboard.
func (s *Server) scope(r *http.Request) (dashboard.Scope, error) {
	scope, err := s.scoped(r)
	if err != nil {
		return nil, err // not a nil *scoped
	}
	return scope, nil
}
