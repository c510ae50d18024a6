// SPDX-License-Identifier: Apache-2.0

// Package delay makes hosts in network namespaces distant, on kernels without netem: it delays packets that they send
// to a network. Packets to them are not delayed, so the delay is a round trip.
package delay

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
)

// tunName is the name of the device that takes packets to be delayed. A network namespace has one.
const tunName = "far0"

// Config describes a delay.
type Config struct {
	// Device is the Ethernet device by which the host sends, in the network namespace of the thread that calls Open.
	Device string
	// Source is the host's IPv4 address, To the MAC address of the neighbor to which all packets go.
	Source netip.Addr
	To     net.HardwareAddr
	// Network is the IPv4 network to which packets are delayed.
	Network netip.Prefix
	// By is how long.
	By time.Duration
}

// Delay delays packets until it is closed: a route leads them to a tun device, and from there this process passes them
// on to the device of the host.
type Delay struct {
	tun     *os.File
	socket  int // packet socket at the host's device
	packets chan packet
	group   sync.WaitGroup
}

type packet struct {
	frame []byte
	due   time.Time
}

// Open begins to delay packets. The caller closes the Delay.
func Open(cfg Config) (*Delay, error) {
	d := &Delay{socket: -1, packets: make(chan packet, 4096)}
	header, err := d.open(&cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("delay packets from %v to %v at %s: %w", cfg.Source, cfg.Network, cfg.Device,
			err), d.Close())
	}
	d.group.Go(func() { d.read(header, cfg.By) })
	d.group.Go(d.write)
	return d, nil
}

// open makes the tun device, routes packets to it, and opens the socket. It returns the Ethernet header of packets.
func (d *Delay) open(cfg *Config) (header []byte, err error) {
	eth, err := netlink.LinkByName(cfg.Device)
	if err != nil {
		return nil, err
	}
	if err := d.openTun(); err != nil {
		return nil, err
	}
	tun, err := netlink.LinkByName(tunName)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(tun); err != nil {
		return nil, fmt.Errorf("set %s up: %w", tunName, err)
	}
	// Replies arrive at another device than that of the route.
	for _, conf := range []string{"all", cfg.Device} {
		file := "/proc/sys/net/ipv4/conf/" + conf + "/rp_filter"
		if err := os.WriteFile(file, []byte("0"), 0o644); err != nil {
			return nil, err
		}
	}
	route := &netlink.Route{
		LinkIndex: tun.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: cfg.Source.AsSlice(),
		Dst: &net.IPNet{IP: cfg.Network.Addr().AsSlice(), Mask: net.CIDRMask(cfg.Network.Bits(), 32)},
	}
	if err := netlink.RouteReplace(route); err != nil {
		return nil, fmt.Errorf("route %s to %s: %w", cfg.Network, tunName, err)
	}
	if d.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.Bind(d.socket, &unix.SockaddrLinklayer{Ifindex: eth.Attrs().Index}); err != nil {
		return nil, fmt.Errorf("bind to %s: %w", cfg.Device, err)
	}
	return append(append(append([]byte(nil), cfg.To...), eth.Attrs().HardwareAddr...), 8, 0), nil
}

// openTun makes the tun device.
func (d *Delay) openTun() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(tunName)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return errors.Join(fmt.Errorf("make tun device: %w", err), unix.Close(fd))
	}
	d.tun = os.NewFile(uintptr(fd), tunName)
	return nil
}

// read reads packets from the tun device until it is closed.
func (d *Delay) read(header []byte, by time.Duration) {
	defer close(d.packets)
	buf := make([]byte, 2048)
	for {
		n, err := d.tun.Read(buf)
		if err != nil {
			return
		}
		d.packets <- packet{append(append([]byte(nil), header...), buf[:n]...), time.Now().Add(by)}
	}
}

// write passes packets on when their time has come. All wait equally long, so they keep their order.
func (d *Delay) write() {
	for p := range d.packets {
		time.Sleep(time.Until(p.due))
		_ = unix.Send(d.socket, p.frame, 0) // a failure is a loss on the way
	}
}

// Close ends the delay. The tun device goes with it, and the route with that.
func (d *Delay) Close() error {
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
