// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/testutil/netlab"
)

// delayDevice is the name of the device of a distant client's packets.
const delayDevice = "far0"

// delay makes a host distant: its packets to the services go through a tun device to this process, which passes them on
// to the link after a time. Packets to the host are not delayed.
type delay struct {
	tun     *os.File
	socket  int // packet socket at the host's device
	packets chan delayed
	group   sync.WaitGroup
}

type delayed struct {
	frame []byte
	due   time.Time
}

// newDelay makes packets of a host to the services arrive at the node after a time.
func newDelay(host, node *netlab.Namespace, services netip.Prefix, by time.Duration) (_ *delay, err error) {
	to, err := hardwareAddr(node, netlab.Device)
	if err != nil {
		return nil, err
	}
	from, err := hardwareAddr(host, netlab.Device)
	if err != nil {
		return nil, err
	}
	d := &delay{socket: -1, packets: make(chan delayed, 4096)}
	if err := host.Do(func() error { return d.open(services, host.Addr) }); err != nil {
		return nil, errors.Join(fmt.Errorf("make %s distant: %w", host.Host, err), d.close())
	}
	header := append(append(append([]byte(nil), to...), from...), 8, 0)
	d.group.Go(func() { d.read(header, by) })
	d.group.Go(d.write)
	return d, nil
}

// open makes the device, routes packets to the services to it, and opens the socket. It runs in the host's namespace.
func (d *delay) open(services netip.Prefix, source netip.Addr) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(delayDevice)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return errors.Join(fmt.Errorf("make tun device: %w", err), unix.Close(fd))
	}
	d.tun = os.NewFile(uintptr(fd), delayDevice)
	tun, err := netlink.LinkByName(delayDevice)
	if err != nil {
		return err
	}
	eth, err := netlink.LinkByName(netlab.Device)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(tun); err != nil {
		return fmt.Errorf("set %s up: %w", delayDevice, err)
	}
	// Answers come by another device than that of the route.
	for _, conf := range []string{"all", netlab.Device} {
		file := "/proc/sys/net/ipv4/conf/" + conf + "/rp_filter"
		if err := os.WriteFile(file, []byte("0"), 0o644); err != nil {
			return err
		}
	}
	route := &netlink.Route{
		LinkIndex: tun.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: source.AsSlice(),
		Dst: &net.IPNet{IP: services.Addr().AsSlice(), Mask: net.CIDRMask(services.Bits(), 32)},
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s to %s: %w", services, delayDevice, err)
	}
	if d.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.Bind(d.socket, &unix.SockaddrLinklayer{Ifindex: eth.Attrs().Index}); err != nil {
		return fmt.Errorf("bind to %s: %w", netlab.Device, err)
	}
	return nil
}

// read reads packets from the device until it is closed.
func (d *delay) read(header []byte, by time.Duration) {
	defer close(d.packets)
	buf := make([]byte, 2048)
	for {
		n, err := d.tun.Read(buf)
		if err != nil {
			return
		}
		d.packets <- delayed{append(append([]byte(nil), header...), buf[:n]...), time.Now().Add(by)}
	}
}

// write passes packets on when their time has come. All wait equally long, so they keep their order.
func (d *delay) write() {
	for p := range d.packets {
		time.Sleep(time.Until(p.due))
		_ = unix.Send(d.socket, p.frame, 0) // a failure is a loss on the way
	}
}

// close ends the delay. The device goes with it.
func (d *delay) close() error {
	var err error
	if d.tun != nil {
		err = d.tun.Close()
	}
	d.group.Wait()
	if d.socket >= 0 {
		err = errors.Join(err, unix.Close(d.socket))
	}
	return err
}

// received returns how many packets a host's device has received.
func received(host *netlab.Namespace, device string) (n int, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			n = int(link.Attrs().Statistics.RxPackets)
		}
		return err
	})
	return n, err
}

// hardwareAddr returns the MAC address of a host's device.
func hardwareAddr(host *netlab.Namespace, device string) (addr net.HardwareAddr, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			addr = link.Attrs().HardwareAddr
		}
		return err
	})
	return addr, err
}
