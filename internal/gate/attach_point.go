// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachPoint is a place in the kernel where the gate's program runs before others.
type attachPoint struct {
	ifindex int
	at      ebpf.AttachType // of tcx or netkit; zero if there is no order, as in XDP
	prog    *ebpf.Program
}

// attach attaches the program before all others.
func (p *attachPoint) attach() (link.Link, error) {
	if p.at == ebpf.AttachNetkitPeer {
		return link.AttachNetkit(link.NetkitOptions{
			Interface: p.ifindex, Program: p.prog, Attach: p.at, Anchor: link.Head(),
		})
	}
	return link.AttachTCX(link.TCXOptions{
		Interface: p.ifindex, Program: p.prog, Attach: p.at, Anchor: link.Head(),
	})
}

// has reports whether a link is at this point.
func (p *attachPoint) has(info *link.Info) bool {
	if p.at == ebpf.AttachNetkitPeer {
		nk := info.Netkit()
		return nk != nil && nk.Ifindex == uint32(p.ifindex) && ebpf.AttachType(nk.AttachType) == p.at
	}
	tcx := info.TCX()
	return tcx != nil && tcx.Ifindex == uint32(p.ifindex) && ebpf.AttachType(tcx.AttachType) == p.at
}

// attachment is an attached program.
type attachment struct {
	link.Link
	at attachPoint
}

// attachments are the attached programs, by name of the pin.
type attachments struct {
	mu     sync.Mutex // taken after podTable.mu and nics.mu
	byName map[string]*attachment
}

func (a *attachments) has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byName[name] != nil
}
