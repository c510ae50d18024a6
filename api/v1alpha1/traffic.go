// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// traffic checks spec.traffic and spec.sticky.
func (e *ValidationErrors) traffic(s *WangellServiceSpec) {
	e.sticky(s)
	if !s.SplitsTraffic() {
		return
	}
	p := specPath.Child("traffic")
	if n := len(s.Traffic); n > MaxRevisions {
		e.add(p, "remove some", "%d revisions, at most %d", n, MaxRevisions)
	}
	sum := int64(0)
	for i, r := range s.Traffic {
		e.revision(p.Index(i), s.Traffic[:i], r)
		sum += int64(r.Percent)
	}
	if sum != 100 {
		last := s.Traffic[len(s.Traffic)-1]
		fix := "change them"
		if rest := int64(last.Percent) + 100 - sum; 0 <= rest && rest <= 100 {
			fix = fmt.Sprintf("write percent: %d for %s, for example", rest, last.Revision)
		}
		e.add(p, fix, "the percentages add up to %d, and not to 100", sum)
	}
	for _, f := range s.podFields() {
		e.add(specPath.Child(f), "write it in the manifests of the revisions, or leave traffic out",
			"cannot be set beside traffic: the service has no pods of its own")
	}
	if b := s.Balancing; b != nil {
		e.trafficBalancing(specPath.Child("balancing"), s, b)
	}
}

// revision checks an entry of spec.traffic, with those before it.
func (e *ValidationErrors) revision(p *field.Path, before []Revision, r Revision) {
	if r.Revision == "" {
		e.add(p.Child("revision"), "write the name of a service, for example revision: shop-v1", "missing")
	} else {
		e.label(p.Child("revision"), r.Revision)
	}
	if r.Percent < 0 || r.Percent > 100 {
		e.add(p.Child("percent"), "write percent: 10, for example", "want a percentage from 0 to 100, got %d", r.Percent)
	}
	if slices.ContainsFunc(before, func(o Revision) bool { return o.Revision == r.Revision }) {
		e.add(p.Child("revision"), "remove one of the two", "%s is listed twice", r.Revision)
	}
	if r.Tag == "" {
		return
	}
	if len(validation.IsDNS1123Label(r.Tag)) > 0 {
		e.label(p.Child("tag"), r.Tag)
	} else if slices.ContainsFunc(before, func(o Revision) bool { return o.Tag == r.Tag }) {
		e.add(p.Child("tag"), "use another tag", "%s is the tag of another revision", r.Tag)
	}
}

// trafficBalancing checks spec.balancing of a service whose requests go to others.
func (e *ValidationErrors) trafficBalancing(p *field.Path, s *WangellServiceSpec, b *Balancing) {
	if b.Level == LevelConnection {
		e.add(p.Child("level"), "write level: Request, or leave it out", "traffic needs level: Request")
	}
	const fix = "write it in the manifests of the revisions"
	if b.MaxRequestsPerPod != 0 {
		e.add(p.Child("maxRequestsPerPod"), fix, "cannot be set beside traffic: the service has no pods of its own")
	}
	if b.Warmup != 0 {
		e.add(p.Child("warmup"), fix, "cannot be set beside traffic: the service has no pods of its own")
	}
	if b.LocalityPreference == LocalityLocal {
		e.add(p.Child("localityPreference"), fix, "cannot be set beside traffic: the service has no pods of its own")
	}
	if b.Protocol != ProtocolTCP {
		return
	}
	for i, r := range s.Traffic {
		if r.Tag != "" {
			e.add(specPath.Child("traffic").Index(i).Child("tag"), "write protocol: Auto, or leave it out",
				"needs requests with headers, which protocol: TCP has not")
		}
	}
	if s.Sticky != nil {
		e.add(specPath.Child("sticky"), "write protocol: Auto, or leave it out",
			"needs requests with headers, which protocol: TCP has not")
	}
}

// podFields returns the names of the fields that are set and describe pods. Their defaults, with which API servers and
// Default fill them in, do not count.
func (s *WangellServiceSpec) podFields() []string {
	names := s.fieldsSet(ofRevisions)
	if s.MaxReplicas <= DefaultMaxReplicas {
		names = slices.DeleteFunc(names, func(n string) bool { return n == "maxReplicas" })
	}
	if s.ReadyWhen == ReadyWhenProbed {
		names = append(names, "readyWhen")
	}
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		names = append(names, "sessionAffinity")
	}
	return names
}

// sticky checks spec.sticky.
func (e *ValidationErrors) sticky(s *WangellServiceSpec) {
	if s.Sticky == nil {
		return
	}
	p := specPath.Child("sticky")
	if !s.SplitsTraffic() {
		e.add(p, "leave it out, or write traffic", "needs traffic")
	}
	if (s.Sticky.Header == "") == (s.Sticky.Cookie == "") {
		e.add(p, "write sticky: {cookie: revision}, for example", "want header or cookie")
	}
	for name, value := range map[string]string{"header": s.Sticky.Header, "cookie": s.Sticky.Cookie} {
		if value != "" && (len(value) > 128 || !isToken(value)) {
			e.add(p.Child(name), "write "+name+": revision, for example",
				"want the name of a %s: at most 128 letters, digits, - and _, got %q", name, value)
		}
	}
	if s.Sticky.MaxAge != 0 {
		e.pathInRange(p.Child("maxAge"), s.Sticky.MaxAge)
		if s.Sticky.Cookie == "" {
			e.add(p.Child("maxAge"), "write cookie: revision beside it, or leave it out", "is that of a cookie")
		}
	}
}

// isToken reports whether text can be the name of a header or cookie, without characters that need quoting.
func isToken(text string) bool {
	for _, c := range text {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return text != ""
}

// CheckRevision returns why a service cannot be a revision in the traffic of another one, and what to do; empty if it
// can.
func CheckRevision(s *WangellService) (why, fix string) {
	switch {
	case s.Spec.SplitsTraffic():
		return "it has traffic itself", "name its revisions instead"
	case !s.Spec.BalancesRequests():
		return "it balances connections", "write balancing: {level: Request} in its manifest"
	}
	return "", ""
}
