// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// InspectXDP returns how XDP is attached, or would be by XDPAuto, to the interfaces with an IPv4 default route of the
// calling thread's network namespace. It changes nothing.
func InspectXDP() (map[string]AttachedXDP, error) {
	names, err := DefaultInterfaces()
	if err != nil {
		return nil, err
	}
	devices, err := listDevices()
	if err != nil {
		return nil, err
	}
	vlans := vlansOn(devices)
	out := map[string]AttachedXDP{}
	for _, name := range names {
		d, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		out[name] = inspectXDP(d, vlans[d.Attrs().Index])
	}
	return out, nil
}

func inspectXDP(d netlink.Link, vlans []string) AttachedXDP {
	const generic = 2 // XDP_ATTACHED_SKB, linux/if_link.h
	if x := d.Attrs().Xdp; x != nil && x.Attached {
		name := programName(x.ProgId)
		switch {
		case !strings.HasPrefix(name, "gate_xdp"):
			return AttachedXDP{XDPOff, fmt.Sprintf("another XDP program is attached (%s, ID %d)", name, x.ProgId)}
		case x.AttachMode == generic:
			return AttachedXDP{Mode: XDPGeneric}
		default:
			return AttachedXDP{Mode: XDPNative}
		}
	}
	why := whyNoXDP(d.Type(), vlans, func() bool { return removesVLANTags(d.Attrs().Name) })
	if why != "" {
		return AttachedXDP{XDPOff, why}
	}
	if has, err := driverHasXDP(d.Attrs().Index); err == nil && !has {
		return AttachedXDP{XDPOff, "its driver does not support native XDP"}
	}
	return AttachedXDP{Mode: XDPNative}
}

// programName returns the name of an eBPF program, cut to 15 bytes by the kernel; "?" if it cannot be read.
func programName(id uint32) string {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return "?"
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "?"
	}
	return info.Name
}

// genlHeader is struct genlmsghdr: command, version, and two reserved bytes that must be zero, which nl.Genlmsg omits.
type genlHeader [4]byte

// Len implements nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h genlHeader) Serialize() []byte { return h[:] }

// driverHasXDP asks the kernel whether a device's driver supports native XDP (linux/netdev.h, since Linux 6.3).
func driverHasXDP(index int) (bool, error) {
	const (
		getDevice   = 1 // NETDEV_CMD_DEV_GET
		attrIfindex = 1 // NETDEV_A_DEV_IFINDEX
		attrXDP     = 3 // NETDEV_A_DEV_XDP_FEATURES
		basic       = 1 // NETDEV_XDP_ACT_BASIC
	)
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return false, fmt.Errorf("looking for the netlink family netdev: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(genlHeader{getDevice, 1})
	req.AddData(nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(index))))
	replies, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return false, fmt.Errorf("reading the XDP features of interface %d: %w", index, err)
	}
	for _, r := range replies {
		attrs, err := nl.ParseRouteAttr(r[nl.SizeofGenlmsg:])
		if err != nil {
			return false, fmt.Errorf("reading the XDP features of interface %d: %w", index, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == attrXDP && len(a.Value) == 8 {
				return nl.NativeEndian().Uint64(a.Value)&basic != 0, nil
			}
		}
	}
	return false, fmt.Errorf("interface %d: the kernel does not say its XDP features", index)
}
