// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"net/netip"
	"time"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/netlab"
)

// server is one service of an application.
type server struct {
	name   string
	recipe debimage.Recipe
	// port is where it listens.
	port int
	// data is the folder that it writes to; empty: none.
	data string
	// env are settings, by name.
	env map[string]string
}

// load is what clients do.
type load struct {
	// rate is the number of operations per minute; 0: as many as possible.
	rate     int
	duration time.Duration
	tuned    bool
}

// client is where the clients run, and what they call.
type client struct {
	ns *netlab.Namespace
	// dir is for files of the clients. It is removed after the run.
	dir string
	// servers are the addresses of the servers, in order.
	servers []netip.AddrPort
}

// workload is an application and its clients.
type workload interface {
	name() string
	// title and how are parts of the report.
	title() string
	how() string
	// servers are the services. Clients call the first one, or all.
	servers(c Case) []server
	// limits are those of the tests with limits, and as the manifest has them.
	limits() (cpu, memory string)
	// prepare returns once the servers serve and have their data.
	prepare(ctx context.Context, c client) error
	// measure puts load on the servers.
	measure(ctx context.Context, c client, l load) (Result, error)
	// headline is the operation that the summary is about; empty: all.
	headline() string
	// tuning says what the tuned test has.
	tuning() string
	// versions are the versions of the clients.
	versions(ctx context.Context) (map[string]string, error)
}
