// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Counters returns the namespace's counters from /proc/net/snmp and /proc/net/netstat (IPv4, TCP, UDP, ICMP). Keys are
// protocol and name: "TcpExt.TCPSynRetrans", "Tcp.ActiveOpens".
func (ns *Namespace) Counters() (all map[string]uint64, err error) {
	err = ns.Do(func() (err error) {
		all, err = ThreadCounters()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counters of %s: %w", ns.Name, err)
	}
	return all, nil
}

// ThreadCounters returns the same counters of the network namespace of the calling thread.
func ThreadCounters() (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, name := range []string{"snmp", "netstat"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if err != nil {
			return nil, err
		}
		err = readCounters(f, all)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
	}
	return all, nil
}

// readCounters reads pairs of lines, "Proto: name name …" and "Proto: value value …".
func readCounters(r io.Reader, into map[string]uint64) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		names := strings.Fields(s.Text())
		if !s.Scan() {
			break
		}
		values := strings.Fields(s.Text())
		if len(names) == 0 || len(names) != len(values) || names[0] != values[0] {
			return errors.New("names and values do not match")
		}
		for i := 1; i < len(names); i++ {
			v, err := strconv.ParseInt(values[i], 10, 64) // Tcp.MaxConn is -1
			if err != nil {
				return err
			}
			into[strings.TrimSuffix(names[0], ":")+"."+names[i]] = uint64(v)
		}
	}
	return s.Err()
}

// SYNRetransmits returns how many SYNs and SYN-ACKs the namespace has retransmitted since it was created.
func (ns *Namespace) SYNRetransmits() (uint64, error) {
	c, err := ns.Counters()
	if err != nil {
		return 0, err
	}
	n, ok := c["TcpExt.TCPSynRetrans"]
	if !ok {
		return 0, fmt.Errorf("network namespace %s: the kernel has no counter TCPSynRetrans", ns.Name)
	}
	return n, nil
}
