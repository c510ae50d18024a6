// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// refused expects a RST: a client whose service cannot wake must not wait for its own timeout.
func refused(t *testing.T, from *netlab.Namespace, address string) {
	t.Helper()
	c, err := e2e.Dial(from.Dialer(), address)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the client: %v, want connection refused", err)
	}
}

// The client is refused, and status, event and log say why. Other services are not affected, and once the manifest is
// repaired the next request works. All services are broken at the same time, as most of the test is waiting for
// timeouts.
func TestServicesThatCannotStartSayWhy(t *testing.T) {
	const timeout = "wakeTimeout: 10\nterminationGracePeriodSeconds: 1" // long enough for the process to start
	tests := []struct {
		what   string
		broken service
		want   []string // parts of the message
	}{
		{"process exits at once", service{env: map[string]string{"MODE": "exit"}},
			[]string{"exited with code 3", "/etc/app.conf is missing"}},
		{"port already taken in the container", service{env: map[string]string{"MODE": "taken"}},
			[]string{"exited with code 1", "address already in use"}},
		{"process never listens", service{env: map[string]string{"MODE": "deaf"}, more: timeout},
			[]string{"nothing listens on port 8080", "10s", "no TCP port"}},
		{"process listens on 127.0.0.1 only", service{env: map[string]string{"BIND": "127.0.0.1"}, more: timeout},
			[]string{"listens on 127.0.0.1:8080, not on an address that clients reach", "10s"}},
		{"process listens on another port", service{env: map[string]string{"PORT": "8081"}, more: timeout},
			[]string{"listens on 8081; targetPort is 8080", "spec.targetPort"}},
		{"no such program in the image", service{more: `command: ["/nowhere"]`}, []string{"/nowhere"}},
		{"image not on the machine", service{image: "wangell.local/none:v1", more: "imagePullPolicy: Never"},
			[]string{"wangell.local/none:v1", "imagePullPolicy"}},
	}
	l := newLab(t, 1)
	f := l.files(t)
	broken, repaired := []service{{name: "good"}}, []service{{name: "good"}}
	for i := range tests {
		tests[i].broken.name = fmt.Sprintf("broken-%d", i)
		broken, repaired = append(broken, tests[i].broken), append(repaired, service{name: tests[i].broken.name})
	}
	f.write(t, "m.yaml", manifest(broken...))
	u := l.startWith(t, "", "-f", f.dir)
	t.Run("while they are broken", func(t *testing.T) {
		for _, test := range tests {
			t.Run(test.what, func(t *testing.T) {
				t.Parallel()
				name := test.broken.name
				refused(t, l.Client(), l.address(t, name))
				s := l.until(t, name, "failure", isState("Failed"))
				event := u.await(t, 0, "the failure", func(e status.Event) bool {
					return e.Service == v1alpha1.Key("default/"+name) && reports(status.SeverityError, "wake failed")(e)
				})
				for _, want := range test.want {
					l.untilSaid(t, u, func(said string) bool { return strings.Contains(said, want) })
					for where, text := range map[string]string{"status": s.Service.Status.Message, "event": event.Text} {
						if !strings.Contains(text, want) {
							t.Errorf("no %q in the message of the %s: %q", want, where, text)
						}
					}
				}
				if w := l.wakes(t, name); len(w) != 1 || w[0].Result != "failed" || w[0].Reason == "" {
					t.Errorf("wakes: %+v", w)
				}
				l.until(t, name, "end of its pod", func(s status.Status) bool { return len(s.Pods) == 0 })
				e2e.MustAsk(t, l.Client(), l.address(t, "good"))
			})
		}
	})
	f.write(t, "m.yaml", manifest(repaired...))
	for _, s := range repaired {
		l.until(t, s.name, "repaired manifest", func(s status.Status) bool { return s.Service.Status.State != "Failed" })
		e2e.MustAsk(t, l.Client(), l.address(t, s.name))
	}
}

// serveRegistry serves an image registry on a host and returns its host:port.
func (l *lab) serveRegistry(t *testing.T, on *netlab.Namespace) string {
	t.Helper()
	const port = 5000
	listener, err := on.Listen(t.Context(), "tcp", netip.AddrPortFrom(on.Addr, port).String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// push pushes an image to a registry from a host.
func push(t *testing.T, from *netlab.Namespace, ref string, img v1.Image) {
	t.Helper()
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img,
		remote.WithTransport(&http.Transport{DialContext: from.Dialer().DialContext})); err != nil {
		t.Fatal(err)
	}
}

// The registry lacks the image at first.
func TestServiceStartsOnceItsImageIsInTheRegistry(t *testing.T) {
	l := newLab(t, 2)
	host := l.serveRegistry(t, l.Clients[1])
	image := fmt.Sprintf("%s/team/hello:v1", host)
	u := l.startWith(t, manifest(service{name: "hello", image: image}), "-f", "-", "--insecure-registry", host)
	const want = "not found in registry (pull 404): check spec.image"
	// The message comes before the first client.
	u.await(t, 0, "the image is missing", reports(status.SeverityWarning, want))
	s := l.until(t, "hello", "the message", func(s status.Status) bool { return s.Service.Status.Message != "" })
	for _, part := range []string{image, want} {
		if !strings.Contains(s.Service.Status.Message, part) {
			t.Errorf("status: %q, want %q in it", s.Service.Status.Message, part)
		}
	}
	address := l.address(t, "hello")
	refused(t, l.Client(), address)
	e := u.await(t, 0, "the failure", reports(status.SeverityError, "wake failed"))
	if s := l.until(t, "hello", "failed", isState("Failed")).Service.Status; !strings.Contains(s.Message, want) ||
		!strings.Contains(e.Text, want) {
		t.Errorf("status %+v, event %q", s, e.Text)
	}
	push(t, l.Clients[1], image, serverImage)
	e2e.MustAsk(t, l.Client(), address)
	if got := u.await(t, 0, "progress",
		func(e status.Event) bool { return e.Kind == status.EventPull }); got.Service != "default/hello" {
		t.Errorf("progress of the pull: %+v", got)
	}
	// The image is on the machine now, so the registry is not needed.
	l.sleep(t, "hello")
	e2e.MustAsk(t, l.Client(), address)
}

func TestWakeFailsWhenTheRegistryDoesNotAnswer(t *testing.T) {
	l := newLab(t, 1)
	image := l.Client().Addr.String() + ":5000/hello:v1"
	l.startWith(t, manifest(service{name: "hello", image: image}), "-f", "-", "--insecure-registry",
		l.Client().Addr.String())
	refused(t, l.Client(), l.address(t, "hello"))
	if s := l.until(t, "hello", "failed", isState("Failed")).Service.Status; !strings.Contains(s.Message,
		"does not answer") || !strings.Contains(s.Message, image) {
		t.Errorf("status: %+v", s)
	}
}

// Every client is refused all the same.
func TestFailingServiceIsNotStartedForEachSYN(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "broken", env: map[string]string{"MODE": "exit"}})
	address := l.address(t, "broken")
	const clients = 20
	for range clients {
		refused(t, l.Client(), address)
	}
	if n := len(l.wakes(t, "broken")); n < 2 || n >= clients {
		t.Errorf("%d wakes for %d clients one after another, want some but fewer", n, clients)
	}
}

// A metrics address that is in use, however, is an error before anything is started.
func TestListenersOfTheNodeMayUseThePortOfAService(t *testing.T) {
	l := newLab(t, 1)
	const metrics = "127.0.0.1:9464"
	for _, address := range []string{":80", metrics} {
		listener, err := l.Node.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				c, err := listener.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					c.Close()
				}
			}
		}()
	}
	_, err := l.wangell("up", "-f", "../../examples/hello.yaml", "--state-dir", l.state, "--containerd", "own",
		"--interface", "eth0", "--metrics-address", metrics)
	if err == nil || !strings.Contains(err.Error(), "--metrics-address") ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("up with a metrics address that is taken: %v", err)
	}
	l.start(t, service{name: "hello"})
	for _, from := range []*netlab.Namespace{l.Client(), l.Node} {
		e2e.MustAsk(t, from, l.address(t, "hello"))
	}
}

func TestMissingInterfaceIsReportedBeforeTheStart(t *testing.T) {
	l := newLab(t, 1)
	_, err := l.wangell("up", "-f", "../../examples/hello.yaml", "--state-dir", l.state, "--containerd", "own",
		"--interface", "eth7")
	if err == nil || !strings.Contains(err.Error(), "--interface eth7: no such device") {
		t.Errorf("up with a device that does not exist: %v", err)
	}
}

// It has its own run folder. The message says what to do, and the first instance is not affected.
func TestSecondInstanceOnTheNodeIsRefused(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "hello"})
	other := *l
	other.run, other.state = l.dir+"/other", l.dir+"/otherstate"
	u, err := other.launch(manifest(service{name: "hello"}), "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	u.awaitEnd(t)
	if u.err == nil || !strings.Contains(u.said(), "wangell0") {
		t.Errorf("the second instance: %v: %s", u.err, u.said())
	}
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
	l.sleep(t, "hello")
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
}
