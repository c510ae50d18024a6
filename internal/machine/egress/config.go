// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"log/slog"
	"net/netip"
)

// Config configures an Egress.
type Config struct {
	// Pods and Services are the ranges of the pods' and of the services' addresses (IPv4).
	Pods, Services netip.Prefix
	// DevicePrefix starts the names of the pods' devices, and of no others.
	DevicePrefix string
	// FormerPrefix is what an earlier version had as DevicePrefix; empty: nothing. Its table is taken over.
	FormerPrefix string
	// Log receives failures in the background.
	Log *slog.Logger
}
