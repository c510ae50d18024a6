// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"maps"

	"wangell.loutres.me/internal/buildinfo"
	"wangell.loutres.me/internal/localapi"
)

// serveControl serves the control socket, until the instance ends.
func (u *up) serveControl() error {
	server, err := localapi.Serve(localapi.Config{
		Path: u.controlSocket(), Services: u.controller, Log: u.Log,
		Versions: func(ctx context.Context) map[string]string {
			versions := map[string]string{"wangell": buildinfo.Version}
			maps.Copy(versions, u.runtime.Versions(ctx))
			return versions
		},
	})
	if err != nil {
		return err
	}
	u.stopParts = append(u.stopParts, server.Close)
	return nil
}
