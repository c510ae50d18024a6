// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/peer"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	metricsPort = 9465
	// readyIn bounds how long a daemon takes to be connected, and stopIn the time between SIGTERM and SIGKILL.
	readyIn = 60 * time.Second
	stopIn  = 30 * time.Second
	// lookEvery is how often a daemon is asked whether it is ready.
	lookEvery = 20 * time.Millisecond
	// wrongFrom is the least size in bytes of the blobs that Corrupt changes: manifests stay readable.
	wrongFrom = 1 << 20
)

// mirrorAddr is where containerd finds its node's mirror.
var mirrorAddr = netip.MustParseAddrPort("127.0.0.1:7949")

// Node is a node.
type Node struct {
	// Name is its name.
	Name string

	host       *netlab.Namespace
	dir        string
	containerd *live.Containerd
	images     *cri.Images
	daemon     *process.Process
	http       http.Client
}

// askMirror makes containerd ask the mirror before a registry with settings of its own, as described in
// docs/images/peers.md.
func (n *Node) askMirror(registry string) error {
	file := filepath.Join(n.containerd.Hosts(), registry, "hosts.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	server, hosts, _ := strings.Cut(string(text), "\n")
	return os.WriteFile(file, []byte(server+"\n"+peer.HostsEntry(mirrorAddr)+hosts), 0o600)
}

func (n *Node) log() string { return filepath.Join(n.dir, "daemon.log") }

func (n *Node) metricsAddress() string { return netip.AddrPortFrom(n.host.Addr, metricsPort).String() }

// get asks the daemon's HTTP server.
func (n *Node) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.metricsAddress()+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return n.http.Do(req)
}

// await returns once the daemon has the controller's state.
func (n *Node) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyIn)
	defer cancel()
	for {
		res, err := n.get(ctx, "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(res.Status)
		}
		select {
		case <-n.daemon.Ended():
			return fmt.Errorf("its daemon has ended (%v): %s", n.daemon.Err(), containerd.LastLine(n.log(), 0))
		default:
		}
		if lab.Sleep(ctx, lookEvery) != nil {
			return fmt.Errorf("its daemon is not ready: %w: %s", err, containerd.LastLine(n.log(), 0))
		}
	}
}

// Has reports whether the node has all of an image, named by its digest.
func (n *Node) Has(ctx context.Context, image string) (bool, error) {
	_, found, err := n.images.Look(ctx, image)
	return found, err
}

// Metric returns the value of a metric of the daemon, named with its labels as Prometheus writes it; 0 if it has none.
func (n *Node) Metric(ctx context.Context, name string) (float64, error) {
	res, err := n.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, lines.Err()
}

// Corrupt changes a byte in the middle of each large blob that the node's containerd has.
func (n *Node) Corrupt(digests []string) error {
	for _, d := range digests {
		f, err := os.OpenFile(n.containerd.Blob(d), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil && info.Size() >= wrongFrom {
			var b [1]byte
			at := info.Size() / 2
			if _, err = f.ReadAt(b[:], at); err == nil {
				b[0] ^= 0xff
				_, err = f.WriteAt(b[:], at)
			}
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Host is where the node runs.
func (n *Node) Host() *netlab.Namespace { return n.host }

// CPU returns the processor time that its containerd and its daemon have used.
func (n *Node) CPU() (containerd, daemon time.Duration, err error) {
	if containerd, err = n.containerd.CPU(); err != nil {
		return 0, 0, err
	}
	daemon, err = n.daemon.CPU()
	return containerd, daemon, err
}

// Kill ends the daemon by SIGKILL, and containerd.
func (n *Node) Kill() error {
	if err := n.daemon.Signal(unix.SIGKILL); err != nil {
		return err
	}
	<-n.daemon.Ended()
	return n.containerd.Stop()
}

// close ends the node, and removes its files.
func (n *Node) close() error {
	var errs []error
	if n.daemon != nil {
		errs = append(errs, n.daemon.Stop(stopIn))
		n.daemon.Close()
	}
	n.http.CloseIdleConnections()
	if n.images != nil {
		errs = append(errs, n.images.Close())
	}
	if n.containerd != nil {
		errs = append(errs, n.containerd.Close())
	}
	return errors.Join(errors.Join(errs...), containerd.UnmountBelow(n.dir), os.RemoveAll(n.dir))
}
