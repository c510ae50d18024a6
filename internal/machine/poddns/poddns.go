// SPDX-License-Identifier: Apache-2.0

// Package poddns answers the DNS questions of pods on one machine: names of services and of their addresses by itself,
// everything else by the machine's resolver.
//
// The server's sockets are in the pods' own network namespaces, on the loopback address Address. So no packet crosses
// the machine, no firewall of the machine applies, and the pod that asks is certain. The server runs as long as this
// process; without it, pods cannot resolve names.
package poddns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"

	"wangell.loutres.me/internal/runtime/podnet"
)

// Address is the address of the server in pods. It is the same as Docker's, which some images have in their
// configurations.
const Address = "127.0.0.11"

// Limits. A question of a pod beyond them is dropped if it came by UDP, and fails if it came by TCP.
const (
	perPod         = 64  // questions of a pod that wait for the machine's resolver
	inAll          = 512 // of all pods
	tcpConnections = 16  // of a pod
	tcpIdle        = 8 * time.Second
	tcpRead        = 2 * time.Second
	tcpQuestions   = 128  // on one connection
	udpQuestion    = 1232 // bytes
	// udpRead is how long the server waits for a datagram before it only waits again. With the library's default of two
	// seconds, a thousand idle pods would wake it 500 times a second.
	udpRead = 24 * time.Hour
)

// Config configures a Server.
type Config struct {
	// ResolvConf is the resolv.conf with the machine's resolvers, read again when it changes. Default:
	// /etc/resolv.conf.
	ResolvConf string
	// Own are the ranges of services and pods. Addresses in them that belong to no service have no name.
	Own []netip.Prefix
	// Log receives failures in the background.
	Log *slog.Logger
}

// Server answers pods. Its methods may be called concurrently.
type Server struct {
	cfg    Config
	up     *upstream
	known  atomic.Pointer[names]
	asking chan struct{} // one value for each question that waits for the machine's resolver

	mu     sync.Mutex
	places map[string]*place // by the name of the network
}

// place is the server in the network of one pod.
type place struct {
	server    *Server
	namespace atomic.Pointer[string]
	asking    chan struct{}
	ctx       context.Context
	cancel    context.CancelFunc
	servers   []*dns.Server
	serving   sync.WaitGroup
}

// New returns a server that no pod can ask yet; see Attach.
func New(cfg Config) *Server {
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	s := &Server{cfg: cfg, up: &upstream{file: cfg.ResolvConf}, asking: make(chan struct{}, inAll),
		places: map[string]*place{}}
	s.SetServices(nil)
	return s
}

// SetServices sets the addresses of all services.
func (s *Server) SetServices(services map[Name]netip.Addr) {
	s.known.Store(newNames(services, s.cfg.Own))
}

// Attach opens the server's sockets in a network.
func (s *Server) Attach(n podnet.Network) error {
	p := &place{server: s, asking: make(chan struct{}, perPod)}
	namespace := "default"
	p.namespace.Store(&namespace)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	var packets net.PacketConn
	var connections net.Listener
	err := n.Do(func() (err error) {
		address := net.JoinHostPort(Address, "53")
		if packets, err = net.ListenPacket("udp4", address); err == nil {
			connections, err = net.Listen("tcp4", address)
		}
		return err
	})
	if err != nil {
		p.cancel()
		if packets != nil {
			err = errors.Join(err, packets.Close())
		}
		return fmt.Errorf("DNS server in the network of a pod: %w", err)
	}
	p.servers = []*dns.Server{
		{PacketConn: packets, UDPSize: udpQuestion, Handler: p, ReadTimeout: udpRead},
		{Listener: netutil.LimitListener(connections, tcpConnections), Handler: p, MaxTCPQueries: tcpQuestions,
			ReadTimeout: tcpRead, WriteTimeout: tcpRead, IdleTimeout: func() time.Duration { return tcpIdle }},
	}
	for _, server := range p.servers {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		p.serving.Go(func() {
			if err := server.ActivateAndServe(); err != nil && p.ctx.Err() == nil {
				s.cfg.Log.Error("the DNS server of a pod has stopped", "network", n.Name, "error", err)
			}
		})
		<-started // for Shutdown to be heard
	}
	s.mu.Lock()
	s.places[n.Name] = p
	s.mu.Unlock()
	return nil
}

// Assign sets the namespace of the pod in a network, for names without one.
func (s *Server) Assign(network, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[network]; p != nil {
		p.namespace.Store(&namespace)
	}
}

// Detach closes the server's sockets in a network, which keep its namespace alive.
func (s *Server) Detach(network string) {
	s.mu.Lock()
	p := s.places[network]
	delete(s.places, network)
	s.mu.Unlock()
	if p != nil {
		p.close()
	}
}

// Close closes all sockets.
func (s *Server) Close() {
	s.mu.Lock()
	places := s.places
	s.places = map[string]*place{}
	s.mu.Unlock()
	for _, p := range places {
		p.close()
	}
}

// ResolvConf returns the resolv.conf of a pod in a namespace.
func (s *Server) ResolvConf(namespace string) []byte {
	_, search := s.up.read(time.Now())
	search = append([]string{namespace + "." + strings.TrimSuffix(serviceZone, "."), strings.TrimSuffix(serviceZone, "."),
		Domain}, search...)
	return fmt.Appendf(nil, "nameserver %s\nsearch %s\n", Address, strings.Join(search, " "))
}

// close ends the servers. Questions that wait for the machine's resolver are given up.
func (p *place) close() {
	p.cancel()
	for _, server := range p.servers {
		_ = server.Shutdown() // it only fails if the server was not started, but it was
	}
	p.serving.Wait()
}

// ServeDNS answers a question. It implements dns.Handler.
func (p *place) ServeDNS(w dns.ResponseWriter, m *dns.Msg) {
	answer, ok := p.answer(m, w.LocalAddr().Network())
	if !ok {
		return
	}
	if w.LocalAddr().Network() == "udp" {
		size := dns.MinMsgSize
		if e := m.IsEdns0(); e != nil {
			size = max(size, int(e.UDPSize()))
		}
		answer.Truncate(size)
	}
	_ = w.WriteMsg(answer) // a client that does not get it asks again
}

// answer answers a question by itself, or by the machine's resolver. It returns false if the question should be
// dropped.
func (p *place) answer(m *dns.Msg, network string) (*dns.Msg, bool) {
	reply := new(dns.Msg)
	if m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return reply.SetRcode(m, dns.RcodeNotImplemented), true
	}
	reply.SetReply(m)
	reply.RecursionAvailable = true
	if m.IsEdns0() != nil {
		reply.SetEdns0(udpQuestion, false) // RFC 6891, section 6.1.1
	}
	records, what := p.server.known.Load().find(m.Question[0], *p.namespace.Load())
	if what != forward {
		reply.Authoritative, reply.Answer = true, records
		if what == unknown {
			reply.Rcode = dns.RcodeNameError
		}
		if len(records) == 0 {
			reply.Ns = authority()
		}
		return reply, true
	}
	for _, limit := range []chan struct{}{p.asking, p.server.asking} {
		select {
		case limit <- struct{}{}:
			defer func() { <-limit }()
		default:
			reply.Rcode = dns.RcodeServerFailure
			return reply, network != "udp"
		}
	}
	answer, err := p.server.up.ask(p.ctx, network, m)
	if err != nil {
		p.server.cfg.Log.Debug("the machine's resolver does not answer", "question", m.Question[0].Name, "error", err)
		reply.Rcode = dns.RcodeServerFailure
		return reply, true
	}
	return answer, true
}
