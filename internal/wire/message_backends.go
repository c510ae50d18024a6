// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// PodState is the state in which the controller wants a daemon to keep a pod.
type PodState uint8

// The states of a pod, in the order in which it passes through them.
const (
	PodStarting PodState = 1 // its network exists; its home node waits for it to listen, then serves it
	PodServing  PodState = 2 // it listens and gets new flows
	PodDraining PodState = 3 // it gets no new flow; its open flows continue
)

// Limits of what a BACKENDS says of readinessProbes.
const (
	MaxProbe  = 2304 // bytes of one
	MaxProbes = 8    // different ones in a message

	maxRuntime = 253 // bytes of a runtime's ID
)

// Backend is a pod of a service in a Backends message.
type Backend struct {
	// PodID is unique among all pods that a service ever has, and less than 0xfffffffe00000000.
	PodID uint64
	State PodState // what the daemon should do with the pod
	// Addr is the pod's address and the port on which it listens. The zero value means "not known" and is invalid for
	// PodServing.
	Addr netip.AddrPort
	// Node is the name of its home node, at most 253 bytes.
	Node string
	// NodeAddr is the address at which the home node accepts encapsulated packets; zero if there is only one node.
	NodeAddr netip.Addr
	// Netns is the path of its network namespace, at most 255 bytes; empty except on its home node.
	Netns string
	// Probe is the readinessProbe that has to succeed before the pod gets new flows (readiness.Spec, encoded; at most
	// MaxProbe bytes); empty if there is none, and except on its home node. A message has at most MaxProbes different
	// ones.
	Probe string
	// Runtime is the container runtime's ID of a pod with a Probe, at most 253 bytes.
	Runtime string
	// Open are the ports of a service with several for which the pod listens: bit i is the i-th, of which the first has
	// number 0. A pod that serves gets new flows at these ports only.
	Open uint16
}

func (p *Backend) check() error {
	if p.State < PodStarting || p.State > PodDraining {
		return fmt.Errorf("unknown state %d", p.State)
	}
	if p.Addr.IsValid() || p.State == PodServing {
		if err := checkAddr("address", p.Addr); err != nil {
			return err
		}
	}
	if err := checkString("node", p.Node, maxNode); err != nil {
		return err
	}
	if p.NodeAddr.IsValid() {
		if err := checkIP("address of its node", p.NodeAddr); err != nil {
			return err
		}
	}
	if err := checkString("netns", p.Netns, maxNetns); err != nil {
		return err
	}
	return p.checkProbe()
}

func (p *Backend) checkProbe() error {
	if p.Probe == "" && p.Runtime != "" {
		return fmt.Errorf("a runtime's ID without a probe")
	}
	if err := checkString("probe", p.Probe, MaxProbe); err != nil {
		return err
	}
	return checkString("runtime's ID", p.Runtime, maxRuntime)
}

// backendFixed is the number of bytes of a pod without its texts.
const backendFixed = 8 + 1 + addrSize + ipSize + 1 + 1

// Backends lists all pods of a service. Daemons remove pods that are not listed and forget their flows. A service
// without a serving pod is cold: its SYNs are parked.
type Backends struct {
	Service netip.AddrPort // the service address
	// Generation grows with every change of the service. Daemons ignore a message with an older one.
	Generation uint64
	// Sharing is the number of pods that share the parked SYNs, including pods that are still being started and are not
	// in Pods yet. A pod that begins to serve gets its share, and the rest waits briefly for the others. With 0, the
	// first pod gets all of them.
	Sharing uint8
	Pods    []Backend // at most 64 per message
	// Targets are the ports on which the pods listen for the further ports of the service, in the order of the table, at
	// most MaxFurtherPorts for each pod and as many for all; empty if the service has one port.
	Targets [][]uint16
}

// Type returns TypeBackends.
func (*Backends) Type() Type { return TypeBackends }

func (m *Backends) check() error {
	if err := checkService(m.Service); err != nil {
		return err
	}
	if len(m.Pods) > maxPods {
		return fmt.Errorf("%d pods, at most %d per message", len(m.Pods), maxPods)
	}
	if m.Sharing > maxPods {
		return fmt.Errorf("%d pods share the parked SYNs, at most %d can", m.Sharing, maxPods)
	}
	for i := range m.Pods {
		if err := m.Pods[i].check(); err != nil {
			return fmt.Errorf("pod %d: %w", m.Pods[i].PodID, err)
		}
	}
	if n := len(m.probes()); n > MaxProbes {
		return fmt.Errorf("%d different probes, at most %d per message", n, MaxProbes)
	}
	return m.checkTargets()
}

// checkTargets checks Targets, and Open of the pods.
func (m *Backends) checkTargets() error {
	if len(m.Targets) != 0 && len(m.Targets) != len(m.Pods) {
		return fmt.Errorf("targets of %d pods, of %d", len(m.Targets), len(m.Pods))
	}
	ports := m.furtherPorts()
	for i := range m.Pods {
		p := &m.Pods[i]
		if len(m.Targets) > 0 && (len(m.Targets[i]) != ports || ports == 0 || ports > MaxFurtherPorts) {
			return fmt.Errorf("pod %d: %d targets, want 1 to %d and as many for each pod", p.PodID, len(m.Targets[i]),
				MaxFurtherPorts)
		}
		if int(p.Open) >= 2<<ports || ports == 0 && p.Open != 0 {
			return fmt.Errorf("pod %d: it listens for ports %b, and the service has %d more", p.PodID, p.Open, ports)
		}
	}
	return nil
}

// furtherPorts is the number of Targets of each pod.
func (m *Backends) furtherPorts() int {
	if len(m.Targets) == 0 {
		return 0
	}
	return len(m.Targets[0])
}

func (m *Backends) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendAddr(b, m.Service), m.Generation)
	b = append(b, byte(len(m.Pods)))
	for i := range m.Pods {
		p := &m.Pods[i]
		b = append(binary.BigEndian.AppendUint64(b, p.PodID), byte(p.State))
		b = appendIP(appendAddr(b, p.Addr), p.NodeAddr)
		b = appendText(appendText(b, p.Node), p.Netns)
	}
	if probes := m.probes(); len(probes) > 0 || len(m.Targets) > 0 {
		return m.appendTargets(m.appendProbes(append(b, m.Sharing), probes))
	}
	if m.Sharing > 0 { // left out if zero, so that daemons from before the field was added read the message
		b = append(b, m.Sharing)
	}
	return b
}

func (m *Backends) decode(d *decoder) {
	m.Service, m.Generation = d.addr(), d.u64()
	if n := d.count(int(d.u8()), backendFixed); n > 0 {
		m.Pods = make([]Backend, n)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		p.PodID, p.State, p.Addr, p.NodeAddr = d.u64(), PodState(d.u8()), d.addr(), d.ip()
		p.Node, p.Netns = d.text(), d.text()
	}
	if d.err == nil && d.left() > 0 {
		m.Sharing = d.u8()
		switch {
		case d.left() > 0:
			m.decodeProbes(d)
			if d.left() > 0 {
				m.decodeTargets(d)
			}
		case m.Sharing == 0:
			d.fail("trailing zero: the number of sharing pods is left out if it is 0")
		}
	}
}

// probes returns the different probes of the pods, in the order of their first pod.
func (m *Backends) probes() []string {
	var probes []string
	for i := range m.Pods {
		if p := m.Pods[i].Probe; p != "" && !slices.Contains(probes, p) {
			probes = append(probes, p)
		}
	}
	return probes
}

// appendProbes appends the probes, then for each pod the number of its probe, counted from 1, and the runtime's ID.
func (m *Backends) appendProbes(b []byte, probes []string) []byte {
	if b = append(b, byte(len(probes))); len(probes) == 0 {
		return b
	}
	for _, p := range probes {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	for i := range m.Pods {
		p := &m.Pods[i]
		number := slices.Index(probes, p.Probe) + 1
		if b = append(b, byte(number)); number > 0 {
			b = appendText(b, p.Runtime)
		}
	}
	return b
}

// decodeProbes reads what appendProbes appends.
func (m *Backends) decodeProbes(d *decoder) {
	n := int(d.u8()) // different probes of these pods, 1 to MaxProbes, or 0 if Targets follow
	if n > MaxProbes || n == 0 && d.left() == 0 {
		d.fail("trailing bytes: %d probes, want 1 to %d", n, MaxProbes)
		return
	}
	if n == 0 {
		return
	}
	probes := make([]string, n)
	for i := range probes {
		probes[i] = d.name() // a readinessProbe (readiness.Spec, encoded), at most MaxProbe bytes
		if probes[i] == "" || slices.Contains(probes[:i], probes[i]) {
			d.fail("probe %d is empty or there twice", i+1)
		}
	}
	used := 0 // they are numbered in the order of their first pod
	for i := range m.Pods {
		number := int(d.u8()) // of its probe, counted from 1; 0 if it has none
		if number == 0 {
			continue
		}
		if number > min(used+1, n) {
			d.fail("probe %d of %d is used before the one ahead of it", number, n)
			return
		}
		used = max(used, number)
		m.Pods[i].Probe, m.Pods[i].Runtime = probes[number-1], d.text()
	}
	if used < n {
		d.fail("probe %d belongs to no pod", used+1)
	}
}

// appendTargets appends the number of further ports and, for each pod, Open and its Targets.
func (m *Backends) appendTargets(b []byte) []byte {
	if len(m.Targets) == 0 {
		return b
	}
	b = append(b, byte(m.furtherPorts()))
	for i := range m.Pods {
		b = binary.BigEndian.AppendUint16(b, m.Pods[i].Open)
		for _, t := range m.Targets[i] {
			b = binary.BigEndian.AppendUint16(b, t)
		}
	}
	return b
}

// decodeTargets reads what appendTargets appends.
func (m *Backends) decodeTargets(d *decoder) {
	ports := int(d.u8()) // of the service beyond the first one, 1 to MaxFurtherPorts
	if ports == 0 || ports > MaxFurtherPorts || len(m.Pods) == 0 {
		d.fail("trailing bytes: %d further ports, want 1 to %d", ports, MaxFurtherPorts)
		return
	}
	m.Targets = make([][]uint16, len(m.Pods))
	for i := range m.Targets {
		m.Pods[i].Open, m.Targets[i] = d.u16(), make([]uint16, ports)
		for j := range ports {
			m.Targets[i][j] = d.u16() // where the pod listens for a further port
		}
	}
}
