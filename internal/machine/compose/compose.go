// SPDX-License-Identifier: Apache-2.0

// Package compose translates Compose files (https://github.com/compose-spec/compose-spec) into manifests for one
// machine, and reports what it could not translate.
package compose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// Load reads Compose files, with their includes, extensions and variables.
func Load(ctx context.Context, o Options) (*types.Project, error) {
	for _, file := range o.Files { // the loader would call one that is missing invalid
		if _, err := os.Stat(file); file != "-" && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("compose file %s: no such file: check the path; relative paths begin at the current folder",
				file)
		}
	}
	options, err := cli.NewProjectOptions(o.Files, cli.WithEnv(o.Env), cli.WithEnvFiles(o.EnvFiles...), cli.WithDotEnv,
		cli.WithDefaultConfigPath, cli.WithProfiles(o.Profiles), cli.WithResolvedPaths(true))
	if err != nil {
		return nil, fmt.Errorf("compose file: %w", err)
	}
	project, err := options.LoadProject(ctx)
	if err != nil {
		return nil, fmt.Errorf("compose file: %w", err)
	}
	return project, nil
}

// Translate returns the services of a project, sorted by name, and notes about what was not translated. It fails if
// there is no usable service.
func Translate(p *types.Project, o Options) ([]*v1alpha1.WangellService, []Note, error) {
	var services []*v1alpha1.WangellService
	var notes []Note
	names, published := map[string]string{}, map[netip.AddrPort]string{}
	kept := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		service := p.Services[name]
		t := &translation{project: p, service: &service, options: o}
		if host := hostOf(&service); host != "" {
			if of, known := p.Services[host]; !known || hostOf(&of) != "" {
				t.lost("network_mode", "the service is left out: %s has no network of its own", host)
				notes = append(notes, t.notes...)
			}
			continue // a container of its host
		}
		s := t.translate(name)
		notes = append(notes, t.notes...)
		if s == nil {
			continue
		}
		if other, taken := names[s.Name]; taken {
			return nil, notes, fmt.Errorf("services %s and %s would both be named %s: rename one", other, name, s.Name)
		}
		names[s.Name] = name
		// Defaults stay out of the manifest.
		checked := s.DeepCopy()
		if errs := v1alpha1.Validate(checked); len(errs) > 0 {
			notes = append(notes, Note{Service: name, Lost: true,
				Text: "the service is left out: " + strings.ReplaceAll(errs.Error(), "\n", "; ")})
			continue
		}
		for i, port := range s.Spec.PortList() {
			if !port.Host.IsValid() {
				continue
			}
			if other := publisher(published, port.Host); other != "" {
				notes = append(notes, Note{Service: name, Field: "ports", Lost: true, Text: fmt.Sprintf(
					"port %d is not published at the machine: %s already publishes it", port.Host.Port(), other)})
				unpublish(&s.Spec, i)
			} else {
				published[port.Host] = name
			}
		}
		kept[name] = true
		services = append(services, s)
	}
	notes = append(notes, missingUpstreams(p, kept)...)
	notes = append(notes, besides(p)...)
	if len(services) == 0 {
		return nil, notes, fmt.Errorf("no service could be translated")
	}
	return services, notes, nil
}

// unpublish leaves a port of a service, counted from 0, unpublished.
func unpublish(s *v1alpha1.WangellServiceSpec, port int) {
	if len(s.Ports) > 0 {
		s.Ports[port].HostPort, s.Ports[port].HostAddress = 0, ""
		return
	}
	s.HostPort, s.HostAddress = 0, ""
}

// publisher returns the first by name of the services that are published at endpoints that overlap at, or "" if there
// is none.
func publisher(published map[netip.AddrPort]string, at netip.AddrPort) (first string) {
	for other, name := range published {
		if v1alpha1.EndpointsOverlap(at, other) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// besides notes what a project has beside the services that are enabled.
func besides(p *types.Project) (notes []Note) {
	for _, name := range slices.Sorted(maps.Keys(p.DisabledServices)) {
		notes = append(notes, Note{Service: name, Field: "profiles", Text: fmt.Sprintf(
			"the service is left out, as none of its profiles is enabled: --profile %s enables it",
			strings.Join(p.DisabledServices[name].Profiles, " or --profile "))})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Networks)) {
		n := p.Networks[name]
		if n.Internal {
			notes = append(notes, Note{Field: "networks." + name + ".internal", Lost: true,
				Text: "its services reach other networks, such as the Internet: 'wangell up --egress=false' keeps all pods " +
					"from these"})
		}
		if name != "default" || len(n.DriverOpts) > 0 {
			notes = append(notes, Note{Field: "networks." + name, Lost: true,
				Text: "there is one network: all services reach each other; limit clients with spec.allowFrom"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Jobs)) {
		notes = append(notes, Note{Field: "jobs." + name, Lost: true, Text: "jobs are not run: run it by hand"})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Models)) {
		notes = append(notes, Note{Field: "models." + name, Lost: true, Text: "models are not run"})
	}
	return notes
}

// translate returns nil if the service cannot be one.
func (t *translation) translate(name string) *v1alpha1.WangellService {
	if t.service.Image == "" {
		t.lost("build", "the service is left out: build its image with another tool, load it with "+
			"'wangell image load', and name it with image")
		return nil
	}
	t.spec.Image = t.service.Image
	if !t.ports() {
		return nil
	}
	t.program()
	t.limits()
	t.health()
	t.volumes()
	t.secrets()
	t.rest()
	t.guests()
	s := &v1alpha1.WangellService{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: label(name), Namespace: t.options.Namespace},
		Spec:       t.spec,
	}
	t.layer()
	if s.Name != name {
		t.assumed("name", "becomes %s, by which other services must call it", s.Name)
	}
	return s
}
