// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxPorts is the most ports that a service can have.
const MaxPorts = 16

// OnlyPortName is the name of a service's port if its manifest has port instead of ports.
const OnlyPortName = "tcp"

// Port is a port of a service, however its manifest gives it.
//
// +kubebuilder:object:generate=false
type Port struct {
	// Name is unique among the ports of the service.
	Name string
	// Number is the TCP port of the service address.
	Number int32
	// Target is the TCP port on which the pods listen; 0 if targetPort is a name that no container's port has, which
	// validation refuses.
	Target int32
	// AppProtocol is the protocol of the application, as in a Kubernetes Service; empty if the manifest has none.
	AppProtocol string
	// Host is where the port is published on one machine: with the address 0.0.0.0, at all addresses of the machine. The
	// zero value is nowhere.
	Host netip.AddrPort
}

// PortList returns the ports of a service in the order of the manifest, the one of port as OnlyPortName. A valid
// manifest has at least one.
func (s *WangellServiceSpec) PortList() []Port {
	if len(s.Ports) == 0 {
		target := s.TargetPort
		setDefault(&target, s.Port)
		return []Port{{
			Name: OnlyPortName, Number: s.Port, Target: target, AppProtocol: s.AppProtocol,
			Host: hostEndpoint(s.HostAddress, s.HostPort),
		}}
	}
	list := make([]Port, len(s.Ports))
	for i, p := range s.Ports {
		list[i] = Port{
			Name: p.Name, Number: p.Port, Target: s.targetOf(p), AppProtocol: p.AppProtocol,
			Host: hostEndpoint(p.HostAddress, p.HostPort),
		}
	}
	return list
}

// FirstPort returns the first port of a service: that of the manifest's port, or the first of its ports.
func (s *WangellServiceSpec) FirstPort() Port { return s.PortList()[0] }

// targetOf returns the number of a port's targetPort; 0 if it is a name that no port of a container in template has.
func (s *WangellServiceSpec) targetOf(p ServicePort) int32 {
	if p.TargetPort == (intstr.IntOrString{}) {
		return p.Port
	}
	if p.TargetPort.Type == intstr.Int {
		return p.TargetPort.IntVal
	}
	if s.Template == nil {
		return 0
	}
	for _, c := range s.Template.Spec.Containers {
		if n, ok := resolve(p.TargetPort, c.Ports); ok {
			return n
		}
	}
	return 0
}

// TargetText writes the ports on which the pods of a service listen, in the order of its ports, for
// AnnotationTargetPort: "8080", or "8080,8443".
func TargetText(ports []Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprint(p.Target)
	}
	return strings.Join(texts, ",")
}

// TargetsIn reads what TargetText wrote. Ports that are missing or invalid are 0.
func TargetsIn(text string) (ports [MaxPorts]uint16) {
	for i, t := range strings.SplitN(text, ",", MaxPorts) {
		if n, err := strconv.ParseUint(t, 10, 16); err == nil {
			ports[i] = uint16(n)
		}
	}
	return ports
}

var portNameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// IsPortName reports whether a text can be the name of a port: a service name in the sense of RFC 6335, section 5.1.
func IsPortName(text string) bool {
	return len(text) <= 15 && portNameForm.MatchString(text) && strings.ContainsAny(text, "abcdefghijklmnopqrstuvwxyz") &&
		!strings.Contains(text, "--")
}

// ports checks the ports of a service, in both forms.
func (e *ValidationErrors) ports(s *WangellServiceSpec) {
	e.inRange("port", int64(s.Port))
	e.inRange("targetPort", int64(s.TargetPort))
	e.inRange("hostPort", int64(s.HostPort))
	e.hostAddress(specPath, s.HostAddress, s.HostPort)
	path := specPath.Child("ports")
	switch {
	case s.Port == 0 && len(s.Ports) == 0:
		e.add(specPath.Child("port"), "write the port that clients use, for example port: 80", "missing")
		return
	case len(s.Ports) == 0:
		return
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"port", s.Port != 0}, {"targetPort", s.TargetPort != 0}, {"hostPort", s.HostPort != 0},
		{"hostAddress", s.HostAddress != ""}, {"appProtocol", s.AppProtocol != ""},
	} {
		if f.set {
			e.add(specPath.Child(f.name), "write it in an element of ports, or leave ports out", "cannot be set beside ports")
		}
	}
	if len(s.Ports) > MaxPorts {
		e.add(path, "remove some", "%d ports, at most %d", len(s.Ports), MaxPorts)
	}
	if len(s.Ports) > 1 && s.BalancesRequests() {
		e.add(specPath.Child("balancing", "level"), "write level: Connection, or one port",
			"Request is available for services with one port only")
	}
	for i := range s.Ports {
		e.port(path.Index(i), s, i)
	}
}

// port checks an element of the list of ports against those before it.
func (e *ValidationErrors) port(at *field.Path, s *WangellServiceSpec, i int) {
	p, before := &s.Ports[i], s.Ports[:i]
	has := func(is func(ServicePort) bool) bool { return slices.ContainsFunc(before, is) }
	switch {
	case !IsPortName(p.Name):
		e.add(at.Child("name"), "write a name such as http",
			"want at most 15 of a-z, 0-9 and -, with at least one letter, got %q", p.Name)
	case has(func(o ServicePort) bool { return o.Name == p.Name }):
		e.add(at.Child("name"), "use another name", "%q is already the name of another port", p.Name)
	}
	switch r := ranges["spec.port"]; {
	case !r.Has(int64(p.Port)):
		e.add(at.Child("port"), "write port: 80, for example", "want %s, got %d", r, p.Port)
	case has(func(o ServicePort) bool { return o.Port == p.Port }):
		e.add(at.Child("port"), "use another number, or remove one of the two", "%d is already another port", p.Port)
	}
	e.portTarget(at.Child("targetPort"), s, *p)
	if t := s.targetOf(*p); t != 0 && has(func(o ServicePort) bool { return s.targetOf(o) == t }) {
		e.add(at.Child("targetPort"), "leave one of the two out", "%d is already the targetPort of another port", t)
	}
	e.oneOf(at.Child("protocol"), string(p.Protocol), string(corev1.ProtocolTCP))
	if r := ranges["spec.hostPort"]; p.HostPort != 0 && !r.Has(int64(p.HostPort)) {
		e.add(at.Child("hostPort"), "write hostPort: 8080, for example", "want %s, got %d", r, p.HostPort)
	}
	e.hostAddress(at, p.HostAddress, p.HostPort)
	e.appProtocol(at, p.AppProtocol)
	host := hostEndpoint(p.HostAddress, p.HostPort)
	if host.IsValid() && has(func(o ServicePort) bool {
		return EndpointsOverlap(host, hostEndpoint(o.HostAddress, o.HostPort))
	}) {
		e.add(at.Child("hostPort"), "use another number", "another port of the service is already at %d", p.HostPort)
	}
}

// portTarget checks the targetPort of an element of the list of ports.
func (e *ValidationErrors) portTarget(at *field.Path, s *WangellServiceSpec, p ServicePort) {
	target := s.targetOf(p)
	named := p.TargetPort.Type == intstr.String
	switch r := ranges["spec.targetPort"]; {
	case named && s.Template == nil:
		e.add(at, "write its number", "is the name %q, and only containers of template name their ports", p.TargetPort.StrVal)
	case named && target == 0:
		e.add(at, "write its number, or add the name to ports of a container in template",
			"is the name %q, which no port of a container in template has", p.TargetPort.StrVal)
	case target != 0 && !r.Has(int64(target)):
		e.add(at, "write targetPort: 8080, for example", "want %s, got %d", r, target)
	}
}
