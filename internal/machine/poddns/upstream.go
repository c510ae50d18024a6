// SPDX-License-Identifier: Apache-2.0

package poddns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// perServer is how long a server of the machine may take, and perQuestion how long all may take: a little less than
	// the 5 s after which clients ask again (resolv.conf(5)).
	perServer   = 2 * time.Second
	perQuestion = 4500 * time.Millisecond
	// reread is the interval of checks of the machine's resolv.conf.
	reread = time.Second
	// udpAnswer is the size of the largest answer by UDP that is accepted from a server, in bytes.
	udpAnswer = 4096
)

// upstream asks the servers of a resolv.conf, as the machine does.
type upstream struct {
	file string

	mu      sync.Mutex
	servers []string // host:port
	search  []string
	changed time.Time // of the file
	looked  time.Time
}

// read reads the file, if it has changed. now is the present time.
func (u *upstream) read(now time.Time) (servers, search []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.looked) < reread && !u.looked.IsZero() {
		return u.servers, u.search
	}
	u.looked = now
	info, err := os.Stat(u.file)
	if err == nil && info.ModTime().Equal(u.changed) {
		return u.servers, u.search
	}
	u.servers, u.search, u.changed = nil, nil, time.Time{}
	config, readErr := dns.ClientConfigFromFile(u.file)
	if err != nil || readErr != nil {
		return nil, nil
	}
	for _, s := range config.Servers {
		u.servers = append(u.servers, net.JoinHostPort(s, config.Port))
	}
	u.search, u.changed = config.Search, info.ModTime()
	return u.servers, u.search
}

// ask asks the servers in turn until one answers. network is udp or tcp.
func (u *upstream) ask(ctx context.Context, network string, question *dns.Msg) (*dns.Msg, error) {
	servers, _ := u.read(time.Now())
	if len(servers) == 0 {
		return nil, fmt.Errorf("%s names no server", u.file)
	}
	ctx, cancel := context.WithTimeout(ctx, perQuestion)
	defer cancel()
	client := &dns.Client{Net: network, Timeout: perServer, UDPSize: udpAnswer}
	m := question.Copy()
	m.Id = dns.Id() // the pod's may be easy to guess
	var errs []error
	for _, s := range servers {
		answer, _, err := client.ExchangeContext(ctx, m, s)
		if err == nil && !sameQuestion(m, answer) {
			err = errors.New("the answer is for another question")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("server %s: %w", s, err))
			continue
		}
		answer.Id = question.Id
		return answer, nil
	}
	return nil, errors.Join(errs...)
}

func sameQuestion(a, b *dns.Msg) bool {
	return len(a.Question) == 1 && len(b.Question) == 1 && a.Question[0].Qtype == b.Question[0].Qtype &&
		a.Question[0].Qclass == b.Question[0].Qclass && strings.EqualFold(a.Question[0].Name, b.Question[0].Name)
}
