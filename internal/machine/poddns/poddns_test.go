// SPDX-License-Identifier: Apache-2.0

package poddns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// newPlace returns the server of one pod, without sockets, whose machine has the given resolv.conf.
func newPlace(t *testing.T, resolv string) *place {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte(resolv), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(Config{ResolvConf: file, Log: slog.New(slog.DiscardHandler)})
	p := &place{server: s, asking: make(chan struct{}, perPod)}
	p.ctx, p.cancel = context.WithCancel(t.Context())
	namespace := "default"
	p.namespace.Store(&namespace)
	return p
}

func question(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }

func TestQuestionsThatWaitAreBounded(t *testing.T) {
	p := newPlace(t, "")
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p.server.up.read(p.server.up.looked)
	p.server.up.servers, p.server.up.looked = []string{silent.LocalAddr().String()}, p.server.up.looked.AddDate(1000, 0, 0)
	var waiting sync.WaitGroup
	for i := range perPod {
		waiting.Go(func() { p.answer(question(fmt.Sprintf("q%d.test.", i)), "udp") })
	}
	for range perPod { // each has reached the resolver, which keeps silent
		if _, _, err := silent.ReadFrom(make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := p.answer(question("more.test."), "udp"); ok {
		t.Error("one more question by UDP is answered")
	}
	if m, ok := p.answer(question("more.test."), "tcp"); !ok || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("one more question by TCP: %v, %v", m, ok)
	}
	p.cancel()
	waiting.Wait()
}

func TestMachineWithoutResolverFailsAtOnce(t *testing.T) {
	p := newPlace(t, "# none\n")
	if m, ok := p.answer(question("example.com."), "udp"); !ok || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v, %v", m, ok)
	}
}

func TestResolvConfOfPodsHasTheMachinesSearchListLast(t *testing.T) {
	p := newPlace(t, "nameserver 192.0.2.1\nsearch example.com example.net\n")
	want := "nameserver 127.0.0.11\n" +
		"search shop.svc.cluster.local svc.cluster.local cluster.local example.com example.net\n"
	if got := string(p.server.ResolvConf("shop")); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Clients take a server whose answers lack the record for one that knows no extensions, and ask again without.
func TestAnswersHaveExtensionsIfQuestionsHave(t *testing.T) {
	p := newPlace(t, "")
	for _, name := range []string{"cluster.local.", "none.svc.cluster.local.", "example.com."} {
		plain, extended := question(name), question(name)
		extended.SetEdns0(4096, false)
		if m, ok := p.answer(plain, "udp"); !ok || m.IsEdns0() != nil {
			t.Errorf("%s: %v, %v", name, m, ok)
		}
		if m, ok := p.answer(extended, "udp"); !ok || m.IsEdns0() == nil {
			t.Errorf("%s with extensions: %v, %v", name, m, ok)
		}
	}
}

func TestQuestionsThatNoServerAsksForAreRefused(t *testing.T) {
	p := newPlace(t, "")
	m := question("redis.")
	m.Question = append(m.Question, m.Question[0])
	if reply, ok := p.answer(m, "udp"); !ok || reply.Rcode != dns.RcodeNotImplemented ||
		strings.Contains(reply.String(), "ANSWER: 1") {
		t.Errorf("%v, %v", reply, ok)
	}
}
