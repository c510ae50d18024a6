// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"net/http"

	"wangell.loutres.me/internal/base/buildinfo"
	"wangell.loutres.me/internal/show/dashboard"
)

// newDashboard makes the dashboard of this machine.
func (u *up) newDashboard() {
	u.dashboard = dashboard.New(dashboard.Config{Source: u.controller, Version: buildinfo.Version})
	u.stopParts = append(u.stopParts, func() error { u.dashboard.Close(); return nil })
}

// serveUI serves the dashboard, if there is an address for it.
func (u *up) serveUI() {
	if u.ui == nil {
		return
	}
	guard := dashboard.NewGuard(u.dashboard.Handler(u.UIActions), u.ui.Addr())
	server := dashboard.NewServer(guard, u.Log)
	u.stopParts = append(u.stopParts, server.Close)
	u.parts.Go(func() {
		if err := server.Serve(u.ui); !errors.Is(err, http.ErrServerClosed) {
			u.Log.Error("the dashboard is no longer served", "error", err)
		}
	})
	if !dashboard.Loopback(u.ui.Addr()) {
		u.Log.Warn(fmt.Sprintf("other machines reach the dashboard at %s, and its token is not encrypted on the way: "+
			"a loopback address with 'ssh -L' is safer", u.ui.Addr()))
	}
	u.Log.Info("the dashboard is at " + guard.URL())
}
