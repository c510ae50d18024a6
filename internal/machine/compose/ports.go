// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// usualPorts are the ports of images whose Compose files seldom name one, by the last part of the image's name.
var usualPorts = map[string]int32{
	"caddy": 80, "elasticsearch": 9200, "httpd": 80, "mariadb": 3306, "memcached": 11211, "mongo": 27017, "mysql": 3306,
	"nats": 4222, "nginx": 80, "postgis": 5432, "postgres": 5432, "rabbitmq": 5672, "redis": 6379, "traefik": 80,
	"valkey": 6379, "wordpress": 80,
}

// ports finds the port of the service. Services call each other at the ports of containers, so that is the port of the
// service address as well. It returns false if there is none.
func (t *translation) ports() bool {
	for _, p := range t.service.Ports {
		field := "ports"
		switch {
		case p.Protocol != "" && p.Protocol != "tcp":
			t.lost(field, "port %d/%s is not served: services are TCP", p.Target, p.Protocol)
			continue
		case t.spec.Port != 0 && t.spec.Port != int32(p.Target):
			t.lost(field, "port %d is not served: a service has one port, and this one has %d", p.Target, t.spec.Port)
			continue
		}
		t.spec.Port = int32(p.Target)
		if p.Published == "" {
			continue
		}
		published, err := strconv.ParseUint(p.Published, 10, 16)
		if err != nil {
			t.lost(field, "%s is not published at the machine: write spec.hostPort with one port", p.Published)
			continue
		}
		t.publish(p.HostIP, int32(published))
	}
	for _, e := range t.service.Expose {
		number, protocol, _ := strings.Cut(e, "/")
		port, err := strconv.ParseUint(number, 10, 16)
		switch {
		case err != nil || protocol != "" && protocol != "tcp":
			t.lost("expose", "%s is not served: services have one TCP port", e)
		case t.spec.Port == 0:
			t.spec.Port = int32(port)
		case t.spec.Port != int32(port):
			t.lost("expose", "port %d is not served: a service has one port, and this one has %d", port, t.spec.Port)
		}
	}
	if t.spec.Port != 0 {
		return true
	}
	name, _, _ := strings.Cut(path.Base(t.service.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	if port := usualPorts[name]; port != 0 {
		t.spec.Port = port
		t.assumed("expose", "port %d is assumed, by the name of the image", port)
		return true
	}
	t.lost("expose", "the service is left out: no connection can wake it without a port: "+
		"write the one on which it listens")
	return false
}

// publish publishes the service at a port of the machine, at the address host of it; "" is every address. What cannot
// be had is not published at all, rather than at more addresses than the project asks for.
func (t *translation) publish(host string, port int32) {
	const field = "ports"
	if t.spec.HostPort != 0 {
		t.lost(field, "port %d is not published at the machine: a service is published once, and this one is at port %d",
			port, t.spec.HostPort)
		return
	}
	if host != "" {
		addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
		switch {
		case err != nil || !addr.Is4():
			t.lost(field, "port %d is not published at the machine: %s is not an IPv4 address, and services are IPv4: write "+
				"an IPv4 address of the machine, such as 127.0.0.1", port, host)
			return
		case !addr.IsUnspecified():
			t.spec.HostAddress = addr.String()
		}
	}
	t.spec.HostPort = port
}
