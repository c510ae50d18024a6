// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/tls"
	"log/slog"

	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/internal/show/dashboard"
	"wangell.loutres.me/internal/show/httpapi"
)

// Services provides what users have access to. A controller.Controller is one.
type Services interface {
	httpapi.Services
	dashboard.Source
}

// Config configures a Server.
type Config struct {
	// API reviews tokens and rights.
	API kubernetes.Interface
	// Certificate is the one whose fingerprint the leader's Lease has.
	Certificate tls.Certificate
	// Services returns the services; nil while this process does not lead.
	Services func() Services
	// Version is the version of this program, as the dashboard shows it.
	Version string
	// Versions returns the versions of programs, by name; may be nil.
	Versions func(context.Context) map[string]string
	Log      *slog.Logger
}
