// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/netlab"
)

// bench is what the parts work with.
type bench struct {
	p   Params
	out lab.Output
	// dir is a folder that is removed at the end; registry, helper and maker are folders with only that program. maker
	// has mkfs.erofs; it is empty if the machine cannot use the snapshotter erofs.
	dir, registry, helper, maker string
	// version is the version of the containerd to measure.
	version string
	// none is an empty folder: the $PATH of a containerd without helpers.
	none     string
	versions map[string]string

	// shared is the image of the part peers.
	shared sharedImage

	// lazyTarball is the image in Params.LazyFormat.
	lazyTarball string

	raw       Samples
	lazyRaw   lazySamples
	explained []Explained
	shares    peerPulls
	done      int
}

// sharedImage is the image that nodes pull.
type sharedImage struct {
	packed int64
	digest string
	layers []string // their digests
}

// stores reports whether an image is in the registry: those that are measured, and the one that is woken.
func (b *bench) stores(name string) bool {
	return slices.Contains(b.p.Parts, PartPulls) && slices.Contains(b.p.Images, name) ||
		name == original && (slices.Contains(b.p.Parts, PartWakes) || slices.Contains(b.p.Parts, PartLazy))
}

// hosts are the clients of a network: one that sends requests, and one that has the registry.
const (
	requester = iota
	hubHost
	hosts
)

// withHub calls f with a network of a number of nodes besides hosts, in which the registry runs, with the link limited.
func (b *bench) withHub(ctx context.Context, nodes int, f func(*netlab.Net, *hub) error) (err error) {
	network, err := netlab.New(netlab.Config{Clients: hosts + nodes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	h, err := b.startHub(ctx, network, b.p.bits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	return f(network, h)
}

// startHub starts the registry in a network, where it sends a number of bits per second, or without limit if that is
// 0. Its images are the same in every network.
func (b *bench) startHub(ctx context.Context, network *netlab.Net, bits uint64) (*hub, error) {
	host := network.Clients[hubHost]
	if bits > 0 {
		if err := limit(host, bits); err != nil {
			return nil, err
		}
	}
	return startHub(ctx, host, b.registry, filepath.Join(b.dir, "hub"))
}

func (b *bench) progress(total int) {
	b.done++
	b.out.Progress(b.done, total)
}

// settle writes what earlier pulls have left to the disk, so that the next one does not wait for it.
func (b *bench) settle() error {
	dir, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}

// wakeTimeout bounds a wake that pulls the image, and the wait for an image.
const wakeTimeout = 5 * time.Minute
