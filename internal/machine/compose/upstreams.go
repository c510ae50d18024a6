// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// missingUpstreams notes which of the services that were translated use one that was left out, and which were left out
// because they share the network of such a one. kept has the names of the services that became services of their own.
func missingUpstreams(p *types.Project, kept map[string]bool) (notes []Note) {
	runs := func(name string) bool {
		s, known := p.Services[name]
		host := hostOf(&s)
		return known && (kept[name] || s.Image != "" && kept[host])
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		if !runs(name) {
			if host := p.Services[hostOf(&s)]; host.Name != "" && !kept[host.Name] && hostOf(&host) == "" {
				notes = append(notes, Note{Service: name, Field: "network_mode", Lost: true,
					Text: "the service is left out with " + host.Name + ", whose network it shares"})
			}
			continue
		}
		uses := upstreams(p, &s)
		for _, other := range slices.Sorted(maps.Keys(uses)) {
			if runs(other) {
				continue
			}
			_, enabled := p.Services[other]
			notes = append(notes, Note{Service: name, Field: uses[other], Lost: enabled, Text: fmt.Sprintf(
				"%s is left out, so what %s asks of it fails: make it a service, or run it elsewhere and name its address",
				other, name)})
		}
	}
	return notes
}

// upstreams returns the other services of a project that a service uses, with the field that says so. A service that is
// only to run to completion first is none.
func upstreams(p *types.Project, s *types.ServiceConfig) map[string]string {
	uses := map[string]string{}
	for name, d := range s.DependsOn {
		if d.Condition != types.ServiceConditionCompletedSuccessfully {
			uses[name] = "depends_on"
		}
	}
	for _, link := range s.Links {
		name, _, _ := strings.Cut(link, ":")
		uses[name] = "links"
	}
	fields := map[string][]string{"entrypoint": s.Entrypoint, "command": s.Command}
	for _, value := range s.Environment {
		if value != nil {
			fields["environment"] = append(fields["environment"], *value)
		}
	}
	for _, others := range []types.Services{p.Services, p.DisabledServices} {
		for name := range others {
			for _, field := range []string{"environment", "command", "entrypoint"} {
				names := func(text string) bool { return namesHost(text, name) }
				if uses[name] == "" && name != s.Name && slices.ContainsFunc(fields[field], names) {
					uses[name] = field
				}
			}
		}
	}
	return uses
}

// namesHost reports whether a text has a host as programs write it: in a URL, or with a port.
func namesHost(text, host string) bool {
	for rest, at := text, 0; ; rest = text[at:] {
		i := strings.Index(rest, host)
		if i < 0 {
			return false
		}
		before, after := text[:at+i], text[at+i+len(host):]
		at += i + len(host)
		if before != "" && inHost(before[len(before)-1]) || after != "" && inHost(after[0]) {
			continue // a part of another name
		}
		inURL := strings.HasSuffix(before, "//") || strings.HasSuffix(before, "@")
		hasPort := len(after) > 1 && after[0] == ':' && after[1] >= '0' && after[1] <= '9'
		if inURL || hasPort {
			return true
		}
	}
}

// inHost reports whether a byte can be a part of a host's name.
func inHost(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}
