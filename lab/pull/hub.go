// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/tarserve"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/netlab"
)

// Limits of the registry.
const (
	hubPort     = 5000
	repository  = "lab/model"
	hubAnswerIn = 30 * time.Second
	hubStopIn   = 10 * time.Second
	lookEvery   = 20 * time.Millisecond
)

// hubConfig is the configuration of the distribution project's registry.
const hubConfig = `version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %q}, cache: {blobdescriptor: inmemory}}
http: {addr: %q}
`

// hub is a registry on a host of a network, behind a link of its own.
type hub struct {
	// Host is the registry in the names of images.
	Host string

	host   *netlab.Namespace
	proc   *process.Process
	client http.Client
	log    string
	closed bool
}

// startHub starts the registry program on a host, with its blobs in dir.
func startHub(ctx context.Context, host *netlab.Namespace, bin, dir string) (_ *hub, err error) {
	h := &hub{Host: fmt.Sprintf("%s:%d", host.Addr, hubPort), host: host, log: filepath.Join(dir, "log")}
	h.client.Transport = &http.Transport{DialContext: host.Dialer().DialContext, MaxIdleConnsPerHost: 8}
	blobs, config := filepath.Join(dir, "blobs"), filepath.Join(dir, "config.yaml")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, hubConfig, blobs, h.Host), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(h.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := host.Command(context.Background(), filepath.Join(bin, registryProgram), "serve", config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program
	if h.proc, err = process.StartBound(cmd); err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	if err := h.await(ctx); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// await returns once the registry answers.
func (h *hub) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hubAnswerIn)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.Host+"/v2/", nil)
		if err != nil {
			return err
		}
		response, err := h.client.Do(request)
		if err == nil {
			return response.Body.Close()
		}
		select {
		case <-h.proc.Ended():
			text, _ := os.ReadFile(h.log) // the error below says that it ended in any case
			return fmt.Errorf("the registry has ended (%v): %s", h.proc.Err(), text)
		default:
		}
		if lab.Sleep(ctx, lookEvery) != nil {
			return fmt.Errorf("the registry does not answer within %s: %w", hubAnswerIn, err)
		}
	}
}

// ref returns the reference of an image with a tag.
func (h *hub) ref(tag string) string { return fmt.Sprintf("%s/%s:%s", h.Host, repository, tag) }

// push uploads the image in a tarball under a tag, from the registry's own host.
func (h *hub) push(ctx context.Context, tarball, tag string) error {
	from, err := tarserve.Start(tarball)
	if err != nil {
		return err
	}
	defer from.Close()
	source, err := name.ParseReference(from.Ref())
	if err != nil {
		return err
	}
	img, err := remote.Image(source, remote.WithContext(ctx))
	if err != nil {
		return err
	}
	to, err := name.ParseReference(h.ref(tag), name.Insecure)
	if err != nil {
		return err
	}
	if err := remote.Write(to, img, remote.WithContext(ctx), remote.WithTransport(h.client.Transport)); err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	return nil
}

// stored is a manifest that the registry has.
type stored struct {
	*v1.Manifest

	Digest v1.Hash
	Size   int64
}

// blobs returns the number of different blobs, with the manifest and the configuration.
func (s stored) blobs() int {
	digests := map[v1.Hash]bool{s.Digest: true, s.Config.Digest: true}
	for _, l := range s.Layers {
		digests[l.Digest] = true
	}
	return len(digests)
}

// manifest returns the manifest of an image with a tag.
func (h *hub) manifest(ctx context.Context, tag string) (s stored, err error) {
	ref, err := name.ParseReference(h.ref(tag), name.Insecure)
	if err != nil {
		return s, err
	}
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(h.client.Transport))
	if err != nil {
		return s, err
	}
	if s.Manifest, err = img.Manifest(); err != nil {
		return s, err
	}
	if s.Size, err = img.Size(); err != nil {
		return s, err
	}
	s.Digest, err = img.Digest()
	return s, err
}

// close ends the registry. Its folder stays. A second call does nothing.
func (h *hub) close() error {
	if h.closed {
		return nil
	}
	h.closed = true
	h.client.CloseIdleConnections()
	return h.proc.Stop(hubStopIn)
}

// limit limits what a host sends to a number of bits per second. The bucket holds what the link carries in 2 ms, or a
// large packet as the sender hands it over, whichever is more.
func limit(host *netlab.Namespace, bits uint64) error {
	return host.Do(func() error {
		device, err := netlink.LinkByName(netlab.Device)
		if err != nil {
			return err
		}
		rate := bits / 8
		const largest = 64 << 10
		bucket := uint32(max(rate/500, 2*largest))
		qdisc := &netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: device.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
			},
			Rate: rate, Buffer: netlink.Xmittime(rate, bucket), Limit: uint32(max(rate/50, 4*largest)),
		}
		if err := netlink.QdiscAdd(qdisc); err != nil {
			return fmt.Errorf("limit the link of %s: %w", host.Host, err)
		}
		return nil
	})
}
