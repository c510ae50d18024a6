// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/forecast"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/node/readiness"
	"wangell.loutres.me/internal/wire"
)

// Service is a service as the controller's user wants it.
type Service struct {
	// Spec is the validated manifest. The controller copies it.
	Spec *v1alpha1.WangellService
	// Addr is the service address without its port (IPv4). No two services have the same Addr and port.
	Addr netip.Addr
	// Announce is set if one of the nodes must answer ARP for Addr. Otherwise something else brings packets to the
	// nodes.
	Announce bool
	// Digests are the image digests that an earlier controller resolved, from the service's status. They are used
	// when the service is added.
	Digests []v1alpha1.ImageDigest
	// History is an earlier controller's record of the service's uses: Status.UseHistory of Service, or what
	// Config.OnHistory got. It is used when the service is added.
	History string
	// Policy are the sources that NetworkPolicies let connect; nil if none restricts the service. A source must also be
	// in spec.allowFrom.
	Policy *sources.Set
	// PortPolicies are the same for the further ports of the service, in their order, if Policy is set. Policy is about
	// the first one.
	PortPolicies []sources.Set
}

// wanted is a Service with values derived from it. It is immutable: an update makes a new one.
type wanted struct {
	key      v1alpha1.Key
	spec     *v1alpha1.WangellService // with defaults
	hash     string                   // of the spec: pods with another one are replaced
	addr     netip.AddrPort           // with the first port
	ports    []v1alpha1.Port
	announce bool
	// permitted is Service.Policy, and permittedMore is Service.PortPolicies.
	permitted     *sources.Set
	permittedMore []sources.Set
	// through are the sources that all revisions of spec.traffic let connect; nil if none of them restricts its clients.
	through *sources.Set
	digests []v1alpha1.ImageDigest // Service.Digests
	history string                 // Service.History
	// prepared is set once the runtime has the image.
	prepared atomic.Bool
	// volumes are those of the images that the service keeps, once they are known. It belongs to the loop.
	volumes []string
}

// with returns the wanted with another value of through.
func (w *wanted) with(through *sources.Set) *wanted {
	n := newWanted(Service{Spec: w.spec, Addr: w.addr.Addr(), Announce: w.announce, Policy: w.permitted,
		PortPolicies: w.permittedMore, Digests: w.digests, History: w.history})
	n.through, n.hash = through, w.hash
	n.prepared.Store(w.prepared.Load())
	return n
}

// newWanted returns a wanted without its hash, which the caller sets if it keeps the wanted.
func newWanted(s Service) *wanted {
	spec := s.Spec.DeepCopy()
	v1alpha1.Default(spec)
	return &wanted{
		key: v1alpha1.KeyOf(spec), spec: spec,
		addr: netip.AddrPortFrom(s.Addr, uint16(spec.Spec.FirstPort().Number)), announce: s.Announce,
		ports: spec.Spec.PortList(), permitted: s.Policy, permittedMore: s.PortPolicies,
		digests: s.Digests, history: s.History,
	}
}

// equal reports whether two versions of a service are the same.
func (w *wanted) equal(o *wanted) bool {
	return sameSet(w.permitted, o.permitted) &&
		slices.EqualFunc(w.permittedMore, o.permittedMore, sources.Set.Equal) && sameSet(w.through, o.through) &&
		w.addr == o.addr && w.announce == o.announce &&
		equality.Semantic.DeepEqual(w.spec.Spec, o.spec.Spec)
}

// sameSet reports whether two sets, which may be missing, are the same.
func sameSet(a, b *sources.Set) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}

// sameImage reports whether the image prepared for an older version suffices for this one.
func (w *wanted) sameImage(old *wanted) bool {
	return w.hash == old.hash && w.spec.Spec.ImagePullPolicy == old.spec.Spec.ImagePullPolicy &&
		w.spec.Spec.PullsOnCreate() == old.spec.Spec.PullsOnCreate() &&
		w.spec.Spec.PullsLazily() == old.spec.Spec.PullsLazily() &&
		w.spec.Spec.PreparedPods() == old.spec.Spec.PreparedPods()
}

// predicts reports whether the service's uses are foreseen from its past.
func (w *wanted) predicts() bool { return w.spec.Spec.Sleep != nil && w.spec.Spec.Sleep.Predict }

// idleSeconds is the time without a packet after which daemons report the service idle, in seconds. With a forecast
// it is short: how long the service is kept is decided here.
func (w *wanted) idleSeconds() uint32 {
	if w.predicts() {
		return uint32(min(w.spec.Spec.IdleTimeout, int64(forecast.Linger/time.Second)))
	}
	return uint32(w.spec.Spec.IdleTimeout)
}

// freezeAfter is the time without a packet after which the service's pods are frozen; 0 if they never are, or if the
// forecast stops them earlier.
func (w *wanted) freezeAfter() time.Duration {
	if after := w.spec.Spec.FreezeAfter(); after < time.Duration(w.idleSeconds())*time.Second {
		return after
	}
	return 0
}

// silence is the time without a packet after which daemons report the service idle.
func (w *wanted) silence() time.Duration {
	return cmp.Or(w.freezeAfter(), time.Duration(w.idleSeconds())*time.Second)
}

// allowed returns the sources that may connect to a port of the service, counted from 0; restricted is false if all
// may.
func (w *wanted) allowed(port int) (allowed sources.Set, restricted bool) {
	allowed = sources.All()
	if networks, listed := w.spec.Spec.AllowedNetworks(); listed {
		allowed, restricted = sources.Of(networks...), true
	}
	permitted := w.permitted
	if port > 0 && port <= len(w.permittedMore) {
		permitted = &w.permittedMore[port-1]
	}
	for _, set := range []*sources.Set{permitted, w.through} {
		if set != nil {
			allowed, restricted = allowed.Intersect(*set), true
		}
	}
	return allowed, restricted
}

// lifecycle is what the service's state machine needs.
func (w *wanted) lifecycle(rolls bool) lifecycle.Spec {
	s := &w.spec.Spec
	spec := lifecycle.Spec{
		Name: string(w.key), Port: uint16(w.ports[0].Target), More: w.furtherPorts(),
		WakeTimeout: time.Duration(s.WakeTimeout) * time.Second, Grace: w.grace(),
		IdleTimeout: time.Duration(w.idleSeconds()) * time.Second, FreezeAfter: w.freezeAfter(),
		FreezeWhenBusy: s.Sleep != nil && s.Sleep.FreezeWhenBusy,
		Min:            int(s.MinReplicas), Max: int(s.MaxReplicas),
		Single: s.Strategy() == v1alpha1.UpdateRecreate || w.keepsVolumes(), Volume: w.sharedVolume(),
	}
	spec.Rolls = rolls && !spec.Single
	if s.DrainTimeout != nil {
		spec.DrainTimeout = max(time.Duration(*s.DrainTimeout)*time.Second, 1) // zero would mean the default
	}
	if s.Scaling != nil {
		spec.BurstPerPod = int(s.Scaling.BurstPerPod)
	}
	return spec
}

// keepsVolumes reports whether the service keeps volumes of its images, as far as is known. No two pods may run then.
func (w *wanted) keepsVolumes() bool { return len(w.volumes) > 0 && w.spec.Spec.KeepsImageVolumes() }

// sharedVolume names a volume that two pods of the service would both write to; empty if there is none.
func (w *wanted) sharedVolume() string {
	if name := w.spec.Spec.SharedVolume(); name != "" || !w.keepsVolumes() {
		return name
	}
	return w.volumes[0]
}

// readiness returns the probes of the service's pods for their home nodes; empty if pods are ready once they listen.
func (w *wanted) readiness() string {
	probe, startup := w.spec.Readiness()
	if probe == nil {
		return ""
	}
	text, err := readiness.Spec{Container: w.spec.MainContainer(), Probe: probe, Startup: startup}.Encode()
	if err != nil {
		panic("controller: " + err.Error()) // types of Kubernetes can be encoded
	}
	return text
}

// policy returns how the service is scaled by its load.
func (w *wanted) policy() scale.Policy {
	s := w.spec.Spec.Scaling
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	p := scale.Policy{
		Metric: string(s.Metric), Target: float64(s.Target),
		Min: max(1, int(w.spec.Spec.MinReplicas)), Max: int(w.spec.Spec.MaxReplicas),
		Out: scale.Direction{Interval: seconds(s.OutInterval), MaxStep: int(s.MaxStep)},
		In:  scale.Direction{Interval: seconds(s.InInterval), MaxStep: int(s.MaxStep)},
	}
	if s.OutStabilization != nil {
		p.Out.Window = seconds(*s.OutStabilization)
	}
	if s.InStabilization != nil {
		p.In.Window = seconds(*s.InStabilization)
	}
	return p
}

// grace is the time between SIGTERM and SIGKILL.
func (w *wanted) grace() time.Duration {
	return time.Duration(*w.spec.Spec.TerminationGracePeriodSeconds) * time.Second
}

func compareKeys(a, b v1alpha1.Key) int { return strings.Compare(string(a), string(b)) }

// bare returns an error's text without the service's name, which reports already have.
func bare(k v1alpha1.Key, err error) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("service %s: ", k))
}

// entry is the service's entry in the daemons' table of services.
func (w *wanted) entry() wire.Service {
	s := &w.spec.Spec
	e := wire.Service{
		Addr: w.addr, Name: string(w.key), IdleSeconds: w.idleSeconds(),
		MaxParked: uint16(s.MaxParked), MaxParkedPerSource: uint16(s.MaxParkedPerSource),
	}
	e.FreezeSeconds = uint32(w.freezeAfter() / time.Second)
	if w.announce {
		e.Flags |= wire.FlagAnnounce
	}
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		e.Flags |= wire.FlagAffinity
	}
	if s.Balancing != nil && s.Balancing.LocalityPreference == v1alpha1.LocalityLocal {
		e.Flags |= wire.FlagPreferLocal
	}
	switch s.WakeProof {
	case v1alpha1.WakeProofAlways:
		e.Flags |= wire.FlagProofAlways
	case v1alpha1.WakeProofNever:
		e.Flags |= wire.FlagProofNever
	}
	if metered(s) {
		e.Flags |= wire.FlagUsage
	}
	var restricted bool
	if e.Sources, restricted = w.sources(0); restricted {
		e.Flags |= wire.FlagSources
	}
	var further []wire.Port
	for i, p := range w.ports[1:] {
		port := wire.Port{Number: uint16(p.Number), Name: p.Name}
		port.Sources, port.Restricted = w.sources(i + 1)
		further = append(further, port)
	}
	e.Ports = wire.NewPorts(further)
	if s.Retries != nil {
		e.Retries = uint8(*s.Retries)
	}
	if s.BalancesRequests() {
		e.Flags |= wire.FlagRequests
		e.Requests = balancingOf(s.Balancing)
		e.Requests.Traffic = trafficOf(w.spec)
	}
	return e
}

// sources returns the rules for clients of a port of the service, counted from 0; restricted is false if it has none.
func (w *wanted) sources(port int) (rules wire.Sources, restricted bool) {
	allowed, restricted := w.allowed(port)
	if !restricted {
		return rules, false
	}
	allowed, _ = allowed.Within(wire.MaxSourceRules)
	return wire.NewSources(allowed.Rules()), true
}

// furtherPorts are the ports of the service beyond the first one, for its state machine.
func (w *wanted) furtherPorts() []lifecycle.Port {
	var more []lifecycle.Port
	for _, p := range w.ports[1:] {
		more = append(more, lifecycle.Port{Name: p.Name, Target: uint16(p.Target)})
	}
	return more
}

// at is the service address with a port of the service.
func (w *wanted) at(p v1alpha1.Port) netip.AddrPort {
	return netip.AddrPortFrom(w.addr.Addr(), uint16(p.Number))
}

// addrs are the service address with each port of the service.
func (w *wanted) addrs() []netip.AddrPort {
	all := make([]netip.AddrPort, len(w.ports))
	for i, p := range w.ports {
		all[i] = w.at(p)
	}
	return all
}

// portAt is the number, counted from 0, of the service's port at an address; 0 if it has none there.
func (w *wanted) portAt(a netip.AddrPort) int { return max(0, slices.Index(w.addrs(), a)) }

// allowed returns rules that allow networks.
func allowed(networks []netip.Prefix) []sources.Rule {
	rules := make([]sources.Rule, len(networks))
	for i, n := range networks {
		rules[i] = sources.Rule{Prefix: n, Allow: true}
	}
	return rules
}

// balancingOf returns how requests are balanced, for the daemons.
func balancingOf(b *v1alpha1.Balancing) wire.Requests {
	r := wire.Requests{
		ClientIdleSeconds: uint32(b.ClientIdleTimeout), MaxPerPod: uint16(b.MaxRequestsPerPod),
		WarmupSeconds: uint16(b.Warmup), Transparent: b.ClientAddress == v1alpha1.ClientAddressTransparent,
		TrustedProxies: wire.NewSources(allowed(b.Proxies())),
	}
	switch b.Protocol {
	case v1alpha1.ProtocolHTTP1:
		r.Protocol = wire.ProtocolHTTP1
	case v1alpha1.ProtocolHTTP2:
		r.Protocol = wire.ProtocolHTTP2
	case v1alpha1.ProtocolTCP:
		r.Protocol = wire.ProtocolTCP
	}
	return r
}

// trafficOf returns the revisions that get the requests of a service, for the daemons.
func trafficOf(s *v1alpha1.WangellService) wire.Traffic {
	if !s.Spec.SplitsTraffic() {
		return wire.Traffic{}
	}
	var sticky wire.Sticky
	switch by := s.Spec.Sticky; {
	case by == nil:
	case by.Header != "":
		sticky = wire.Sticky{Kind: wire.StickyHeader, Name: by.Header}
	default:
		sticky = wire.Sticky{Kind: wire.StickyCookie, Name: by.Cookie, MaxAgeSeconds: uint32(by.MaxAge)}
	}
	var revisions []wire.Revision
	for _, r := range s.Spec.Traffic {
		revisions = append(revisions, wire.Revision{
			Service: s.Namespace + "/" + r.Revision, Percent: uint8(r.Percent), Tag: r.Tag,
		})
	}
	return wire.NewTraffic(sticky, revisions)
}

// drainMillis is how long connections may go on at a former address, in milliseconds.
func (w *wanted) drainMillis() uint32 { return uint32(*w.spec.Spec.DrainTimeout * 1000) }

// splits reports whether the service's requests go to other services. Then it never has a pod: daemons ask for none,
// and it is not used itself.
func (w *wanted) splits() bool { return w.spec.Spec.SplitsTraffic() }

// stateOf is the state of a service as users see it. A service whose requests go to others is always ready; its
// machine only has the state of pods from before the split.
func (s *service) stateOf() lifecycle.State {
	if s.splits() {
		return lifecycle.Warm
	}
	return s.machine.State()
}

// asleep reports whether the service has no pod because nobody uses it.
func (s *service) asleep() bool { return s.stateOf() == lifecycle.Cold }

// hasPods returns an error if a service has no pods of its own to wake or put to sleep.
func (s *service) hasPods() error {
	if !s.splits() {
		return nil
	}
	return fmt.Errorf("service %s has no pods, as its traffic goes to others: name one of its revisions, %s",
		s.key, s.spec.Spec.Traffic[0].Revision)
}

// hasOldRequests reports whether the service may still have requests from when another one routed some to it.
func (s *service) hasOldRequests(now monotime.Time) bool {
	return s.routed != 0 && now.Sub(s.routed) < time.Duration(s.drainMillis())*time.Millisecond
}
