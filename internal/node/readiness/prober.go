// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

const (
	// MaxAnswer is the largest length of an answer in bytes.
	MaxAnswer = 160
	// MaxOutput is the number of bytes of a command's output that an answer is made from. Further output is dropped.
	MaxOutput = 1 << 10
)

// Prober runs the probes of one pod.
type Prober struct {
	Spec Spec
	// Addr is the pod's address, for probes without a host.
	Addr netip.Addr
	// Dial connects from the pod's network namespace.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Exec runs a command in a container of the pod, with the rights of the container's own process, and returns its
	// exit code and the first MaxOutput bytes of its output. An error means that it did not run, or not to its end.
	Exec func(ctx context.Context, container string, command []string) (code int, output []byte, err error)
}

func (p *Prober) exec(ctx context.Context, command []string) (bool, string, error) {
	if p.Exec == nil {
		return false, "", errors.New("this daemon has no container runtime to run a command with")
	}
	code, output, err := p.Exec(ctx, p.Spec.Container, command)
	if err != nil {
		return false, "", err
	}
	answer := fmt.Sprintf("%s: exit code %d", command[0], code)
	if text := bytes.TrimSpace(output); len(text) > 0 {
		answer += ": " + string(text)
	}
	return code == 0, answer, nil
}

// kind names a probe in answers.
func kind(p *corev1.Probe) string {
	switch {
	case p.HTTPGet != nil:
		return "httpGet"
	case p.GRPC != nil:
		return "grpc"
	case p.Exec != nil:
		return "exec"
	}
	return "tcpSocket"
}

// tidy makes one line of printable characters of a text, at most MaxAnswer bytes long.
func tidy(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= MaxAnswer {
		return s
	}
	return strings.ToValidUTF8(s[:MaxAnswer-len("…")], "") + "…"
}
