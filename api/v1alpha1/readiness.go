// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxProbe is the largest size of a readinessProbe and a startupProbe together in bytes of JSON: the messages to
// daemons have to hold them.
const MaxProbe = 2048

// Readiness returns the readinessProbe that decides when a pod is ready, and the startupProbe that has to succeed
// before it, nil if there is none. They have Kubernetes' defaults, and port numbers in place of names. Both are nil
// unless readyWhen is Probe. The service must be valid.
func (s *WangellService) Readiness() (readiness, startup *corev1.Probe) {
	if s.Spec.ReadyWhen != ReadyWhenProbed {
		return nil, nil
	}
	p := s.Spec.probes(s.Name)
	return withDefaults(p.readiness, p.ports), withDefaults(p.startup, p.ports)
}

// withDefaults returns a copy of a probe with Kubernetes' defaults, and with port numbers in place of names; nil for
// nil.
func withDefaults(p *corev1.Probe, ports []corev1.ContainerPort) *corev1.Probe {
	if p == nil {
		return nil
	}
	p = p.DeepCopy()
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	if port := portOf(p); port != nil {
		number, _ := resolve(*port, ports)
		*port = intstr.FromInt32(number)
	}
	if g := p.HTTPGet; g != nil {
		setDefault(&g.Path, "/")
		setDefault(&g.Scheme, corev1.URISchemeHTTP)
	}
	return p
}

// probes are those of a service's main container.
type probes struct {
	readiness, startup *corev1.Probe // nil if there is none
	at                 *field.Path   // of the struct in the manifest that has them
	ports              []corev1.ContainerPort
}

// probes returns the probes of the main container of the service with a name.
func (s *WangellServiceSpec) probes(name string) probes {
	if s.Template == nil {
		return probes{readiness: s.ReadinessProbe, startup: s.StartupProbe, at: specPath}
	}
	containers := s.Template.Spec.Containers
	c := mainOf(name, containers)
	if c == nil {
		return probes{at: specPath.Child("template")}
	}
	i := slices.IndexFunc(containers, func(o corev1.Container) bool { return o.Name == c.Name })
	at := specPath.Child("template").Child("spec").Child("containers").Index(i)
	return probes{c.ReadinessProbe, c.StartupProbe, at, c.Ports}
}

// portOf returns the port of an httpGet or a tcpSocket; nil for other probes.
func portOf(p *corev1.Probe) *intstr.IntOrString {
	switch {
	case p.HTTPGet != nil:
		return &p.HTTPGet.Port
	case p.TCPSocket != nil:
		return &p.TCPSocket.Port
	}
	return nil
}

// resolve returns the number of a port, which may be named in a list; ok is false if there is no such name.
func resolve(p intstr.IntOrString, ports []corev1.ContainerPort) (number int32, ok bool) {
	if p.Type == intstr.Int {
		return p.IntVal, true
	}
	i := slices.IndexFunc(ports, func(c corev1.ContainerPort) bool { return c.Name == p.StrVal })
	if i < 0 {
		return 0, false
	}
	return ports[i].ContainerPort, true
}

// readiness checks readyWhen, and the probes if they decide when a pod is ready.
func (e *ValidationErrors) readiness(name string, s *WangellServiceSpec) {
	when := specPath.Child("readyWhen")
	e.oneOf(when, string(s.ReadyWhen), string(ReadyWhenListens), string(ReadyWhenProbed))
	if s.ReadyWhen != ReadyWhenProbed {
		for name, p := range map[string]*corev1.Probe{"readinessProbe": s.ReadinessProbe, "startupProbe": s.StartupProbe} {
			if p != nil {
				e.add(specPath.Child(name), "add readyWhen: Probe, or remove it", "is not used unless readyWhen is Probe")
			}
		}
		return
	}
	p := s.probes(name)
	at := p.at.Child("readinessProbe")
	if p.readiness == nil {
		if s.Template != nil && len(s.Template.Spec.Containers) == 0 {
			return // that is reported already
		}
		e.add(when, "add "+at.String()+": {tcpSocket: {port: 5432}}, for example, or remove readyWhen",
			"is Probe, but there is no readinessProbe")
		return
	}
	size := e.probe(at, p.readiness, p.ports)
	if p.readiness.TerminationGracePeriodSeconds != nil {
		e.add(at.Child("terminationGracePeriodSeconds"), "remove it", "is not available in a readinessProbe")
	}
	if p.startup != nil {
		at = p.at.Child("startupProbe")
		size += e.probe(at, p.startup, p.ports)
		if p.startup.TerminationGracePeriodSeconds != nil && s.Template == nil {
			e.add(at.Child("terminationGracePeriodSeconds"), "remove it, or write spec.terminationGracePeriodSeconds",
				"is available in a template only")
		}
	}
	if size > MaxProbe {
		e.add(at, "put a long command into a script of the image", "is too long: %d bytes of JSON, "+
			"readinessProbe and startupProbe together, at most %d", size, MaxProbe)
	}
}

// probe checks a readinessProbe or a startupProbe, which is the last element of its path, and returns its size in bytes
// of JSON.
func (e *ValidationErrors) probe(p *field.Path, probe *corev1.Probe, ports []corev1.ContainerPort) int {
	e.probeHandler(p, probe, ports)
	for name, v := range map[string]int32{
		"initialDelaySeconds": probe.InitialDelaySeconds, "periodSeconds": probe.PeriodSeconds,
		"timeoutSeconds": probe.TimeoutSeconds, "successThreshold": probe.SuccessThreshold,
		"failureThreshold": probe.FailureThreshold,
	} {
		if r := ranges["spec."+fieldName(p)+"."+name]; v != 0 && !r.Has(int64(v)) {
			e.add(p.Child(name), "leave it out, or write a value in the range", "want %s, got %d", r, v)
		}
	}
	text, err := json.Marshal(probe)
	if err != nil {
		panic("v1alpha1: a probe cannot be encoded: " + err.Error())
	}
	return len(text)
}

// probeHandler checks that a probe has exactly one handler, which can work.
func (e *ValidationErrors) probeHandler(p *field.Path, probe *corev1.Probe, ports []corev1.ContainerPort) {
	var handlers []string
	host := ""
	if g := probe.HTTPGet; g != nil {
		handlers, host = append(handlers, "httpGet"), g.Host
		e.oneOf(p.Child("httpGet").Child("scheme"), string(g.Scheme), string(corev1.URISchemeHTTP),
			string(corev1.URISchemeHTTPS))
	}
	if t := probe.TCPSocket; t != nil {
		handlers, host = append(handlers, "tcpSocket"), t.Host
	}
	if probe.Exec != nil {
		handlers = append(handlers, "exec")
		at := p.Child("exec").Child("command")
		if len(probe.Exec.Command) == 0 || probe.Exec.Command[0] == "" {
			e.add(at, `write the program, for example command: ["pg_isready", "--quiet"]`, "missing")
		}
		e.noNUL(at, probe.Exec.Command)
	}
	if probe.GRPC != nil {
		handlers = append(handlers, "grpc")
		e.probePort(p.Child("grpc").Child("port"), probe.GRPC.Port)
		if m := probe.GRPC.Mode; m != nil {
			e.oneOf(p.Child("grpc").Child("mode"), string(*m), string(corev1.GRPCProbeModePlaintext),
				string(corev1.GRPCProbeModeTLS))
		}
	}
	switch len(handlers) {
	case 0:
		e.add(p, "write one of httpGet, tcpSocket, exec and grpc, for example tcpSocket: {port: 5432}", "has no handler")
	case 1:
	default:
		e.add(p, "keep one of them", "must have one handler, got %s", strings.Join(handlers, " and "))
		return
	}
	if host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			e.add(p.Child(handlers[0]).Child("host"),
				"leave it out for the pod's address; to send another name, write httpHeaders: [{name: Host, value: "+host+"}]",
				"want an IP address, got %q", host)
		}
	}
	if port := portOf(probe); port != nil {
		at := p.Child(handlers[0]).Child("port")
		number, ok := resolve(*port, ports)
		if !ok {
			e.add(at, "write the number of the port", "no port of the container has the name %q", port.StrVal)
			return
		}
		e.probePort(at, number)
	}
}

func (e *ValidationErrors) probePort(p *field.Path, port int32) {
	if r := ranges["spec.targetPort"]; !r.Has(int64(port)) {
		e.add(p, "write port: 8080, for example", "want %s, got %d", r, port)
	}
}
