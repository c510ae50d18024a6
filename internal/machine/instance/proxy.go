// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"wangell.loutres.me/internal/runtime/podnet"
)

const (
	// envoyUser is the user and group that Envoy runs as: nobody.
	envoyUser = 65534
	// envoyHeap is the memory that Envoy may use for connections and requests, in bytes.
	envoyHeap = 1 << 30
	// envoyConnections is the largest number of clients' connections.
	envoyConnections = 50_000
	// envoyLinger is how long Envoy stays after the last service that needs it, in case another one does.
	envoyLinger = 30 * time.Second
	// programLooks is the interval of checks whether the program has changed.
	programLooks = 2 * time.Second
)

// The files that Envoy inherits. It opens sockets below the first one, whatever the rights of the folders above.
const (
	envoyDirFD     = "/proc/self/fd/3"
	envoyProgramFD = "/proc/self/fd/4"
)

// networks gives Envoy a network of its own.
type networks interface {
	TakeNetwork() (podnet.Network, error)
	ReleaseNetwork(name string) error
}

const envoySocketName = "xds.sock"

// proxy keeps Envoy running while a service balances requests. It is a process of its own in a network namespace of
// its own, with the rights of an unprivileged user, and ends with this process. The daemon configures it. When the
// program's file changes, another Envoy is started, to which the daemon leads new clients.
type proxy struct {
	path string // of the program, EnvoyAuto, or empty: none is used
	dir  string // for sockets
	nets networks
	log  *slog.Logger

	hidden func(why string) // called if pods cannot see the addresses of clients; empty if they do

	mu          sync.Mutex
	wanted      bool
	transparent bool        // pods should see the addresses of clients
	opaque      string      // why they do not, although they should
	linger      *time.Timer // ends the process
	current     *envoyRun
	all         context.Context // ends all of them
	cancel      context.CancelFunc
	running     sync.WaitGroup
	missing     bool // it was reported that there is no Envoy
}

// envoyRun is an Envoy that is kept running.
type envoyRun struct {
	program     string
	transparent bool            // it connects to pods from the addresses of clients, if that is possible
	leave       context.Context // ended when it should end once its clients have left
	retire      context.CancelFunc
	// launched is the state of the program's file at the last launch. A restart after an exit launches whatever the
	// path then names.
	launched fileState
}

// openProgram opens the program for r, unless r has been retired.
func (p *proxy) openProgram(r *envoyRun) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := r.leave.Err(); err != nil {
		return nil, err
	}
	f, state, err := openFile(r.program)
	if err == nil {
		r.launched = state
	}
	return f, err
}

func (p *proxy) launchedBy(r *envoyRun) fileState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return r.launched
}

// adminSocketName is the socket of an Envoy's administration interface.
func adminSocketName(n podnet.Network) string { return fmt.Sprintf("admin-%v.sock", n.Addr) }
