// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
)

// usualPorts are the ports of images whose Compose files seldom name one, by the last part of the image's name.
var usualPorts = map[string]int32{
	"caddy": 80, "elasticsearch": 9200, "httpd": 80, "mariadb": 3306, "memcached": 11211, "mongo": 27017, "mysql": 3306,
	"nats": 4222, "nginx": 80, "postgis": 5432, "postgres": 5432, "rabbitmq": 5672, "redis": 6379, "traefik": 80,
	"valkey": 6379, "wordpress": 80,
}

// maxPorts is the most ports of a service.
const maxPorts = v1alpha1.MaxPorts

// ports finds the ports of the service. Services call each other at the ports of containers, so those are the ports of
// the service address as well. It returns false if there is none.
func (t *translation) ports() bool {
	var list []v1alpha1.ServicePort
	for _, p := range t.service.Ports {
		const field = "ports"
		if p.Protocol != "" && p.Protocol != "tcp" {
			t.lost(field, "port %d/%s is not served: services are TCP", p.Target, p.Protocol)
			continue
		}
		port := t.addPort(&list, field, int32(p.Target), p.Name)
		if port == nil || p.Published == "" {
			continue
		}
		published, err := strconv.ParseUint(p.Published, 10, 16)
		if err != nil {
			t.lost(field, "%s is not published at the machine: write spec.hostPort with one port", p.Published)
			continue
		}
		t.publish(port, p.HostIP, int32(published))
	}
	for _, e := range t.service.Expose {
		number, protocol, _ := strings.Cut(e, "/")
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || protocol != "" && protocol != "tcp" {
			t.lost("expose", "%s is not served: write each TCP port by itself", e)
			continue
		}
		t.addPort(&list, "expose", int32(port), "")
	}
	if len(list) > 0 {
		t.setPorts(list)
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

// addPort adds a port to a list, unless it is there. It returns nil if there are too many.
func (t *translation) addPort(list *[]v1alpha1.ServicePort, field string, number int32,
	name string) *v1alpha1.ServicePort {
	for i := range *list {
		if (*list)[i].Port == number {
			return &(*list)[i]
		}
	}
	if len(*list) == maxPorts {
		t.lost(field, "port %d is not served: a service has at most %d ports", number, maxPorts)
		return nil
	}
	*list = append(*list, v1alpha1.ServicePort{Name: portName(*list, number, name), Port: number})
	return &(*list)[len(*list)-1]
}

// wellKnown are the names of ports that everybody knows by them.
var wellKnown = map[int32]string{25: "smtp", 80: "http", 443: "https", 587: "submission", 993: "imaps"}

// portName returns the name of a port: that in the project if it can be one, a well-known one, or its number.
func portName(others []v1alpha1.ServicePort, number int32, name string) string {
	taken := func(name string) bool {
		return slices.ContainsFunc(others, func(p v1alpha1.ServicePort) bool { return p.Name == name })
	}
	for _, n := range []string{strings.ToLower(name), wellKnown[number]} {
		if v1alpha1.IsPortName(n) && !taken(n) {
			return n
		}
	}
	return fmt.Sprintf("tcp-%d", number)
}

// setPorts sets the ports of the service: one as port and hostPort, several as ports.
func (t *translation) setPorts(list []v1alpha1.ServicePort) {
	if len(list) > 1 {
		t.spec.Ports = list
		return
	}
	t.spec.Port, t.spec.HostPort, t.spec.HostAddress = list[0].Port, list[0].HostPort, list[0].HostAddress
}

// publish publishes a port of the service at a port of the machine, at the address host of it; "" is every address.
// What cannot be had is not published at all, rather than at more addresses than the project asks for.
func (t *translation) publish(p *v1alpha1.ServicePort, host string, port int32) {
	const field = "ports"
	if p.HostPort != 0 {
		t.lost(field, "port %d is not published at the machine: port %d of the service is published once, at port %d",
			port, p.Port, p.HostPort)
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
			p.HostAddress = addr.String()
		}
	}
	p.HostPort = port
}
