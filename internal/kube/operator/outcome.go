// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/netpol"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/status"
)

// outcome is the result of ensuring what a spec asks for.
type outcome struct {
	addr    netip.Addr
	host    string // by which clients outside reach another load balancer that gives no address
	inside  bool   // the Service has no address for clients outside of the cluster
	addrErr error  // why there is no address, or another one than the spec asks for
	invalid v1alpha1.ValidationErrors
	refused error // the API server refused an object, or one of another owner is in the way
	deploy  *appsv1.Deployment
	put     error          // the controller refused the service
	verdict netpol.Verdict // of NetworkPolicies
	// through are the services of spec.traffic, which restrict clients as well.
	through []limits
	// revisions describes what is wrong with the services that get the requests; empty if nothing is, or if the
	// service has pods.
	revisions string
	// strategy is the update strategy that applies; zero if the spec is invalid.
	strategy v1alpha1.StrategyDecision
	retry    time.Duration // zero: no retry
	// maxReplicas is spec.maxReplicas, or its default.
	maxReplicas int32
}

// errForeign means that an object with the wanted name has another owner.
var errForeign = errors.New("exists already and does not belong to this WangellService: " +
	"rename one of the two, or remove it")

// onlyRefused stores an error that a user has to fix in the outcome, and returns any other.
func onlyRefused(out *outcome, err error) error {
	if errors.Is(err, errForeign) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) ||
		apierrors.IsBadRequest(err) {
		out.refused, out.retry = err, time.Minute
		return nil
	}
	return err
}

// wakePatience is the time after which the status says that a wake is under way. A shorter wake is written when it is
// over, as it needs the API server and the machine itself.
const wakePatience = 2 * time.Second

// While at least crowdedWakes services are being woken, crowdedPatience is wakePatience: all of them take longer, and
// the more so the more is written.
const (
	crowdedWakes    = 5
	crowdedPatience = 20 * time.Second
)

// observed is the controller's state of a service.
type observed struct {
	known bool // the controller has the service
	alone bool // no daemon is connected
	// starting means that daemons do not divide service addresses by this controller's list of nodes yet.
	starting bool
	// removing means that pods of an earlier service with this name are ending.
	removing bool
	// unreported means that the status does not count all pods that may run.
	unreported bool
	troubled   bool // the runtime has reported trouble with its pods
	status     v1alpha1.WangellServiceStatus
	lost       string // what to do about a pod on a silent node that blocks others
	images     status.Images
	wake       *v1alpha1.LastWake
	// reservations describes the requests that frozen pods have given back.
	reservations reservation.Summary
	// pressure is the scarcity in the gates of nodes that affects the service.
	pressure status.Pressure
	// fronts are the Envoys of the nodes.
	fronts  fronts
	waking  time.Time // when the wake that is under way began; zero if there is none, or it has trouble
	crowded bool      // many services are being woken
}

// reportPause is the pause before a new leader checks again whether daemons have reported the pods of a service.
const reportPause = 500 * time.Millisecond

// quiet returns how long not to write the status of a service, because it is being woken, or because a new leader
// does not know all its pods yet and nothing seems wrong. The end of the wake triggers its own reconciliation.
func (o observed) quiet(now time.Time) time.Duration {
	if o.unreported && !o.alone && !o.troubled && o.lost == "" {
		return reportPause
	}
	if o.waking.IsZero() {
		return 0
	}
	patience := wakePatience
	if o.crowded {
		patience = crowdedPatience
	}
	return max(o.waking.Add(patience).Sub(now), 0)
}

// lastWake converts a waterfall for the status.
func lastWake(w lifecycle.Waterfall) *v1alpha1.LastWake {
	out := &v1alpha1.LastWake{Start: metav1.NewTime(w.Start.Truncate(time.Second)), Result: string(w.Result),
		Reason: w.Reason}
	for _, p := range w.Phases {
		out.Phases = append(out.Phases, v1alpha1.WakePhase{Name: string(p.Name), Ms: p.At.Milliseconds()})
	}
	return out
}
