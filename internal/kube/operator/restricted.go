// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/netpol"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/wire"
)

// namedPolicies is how many policies the condition names.
const namedPolicies = 10

// limits is what restricts the clients of a service by itself.
type limits struct {
	revision string // the name of the service; empty for the one whose condition it is
	spec     *v1alpha1.WangellServiceSpec
	verdict  netpol.Verdict
}

// restrict intersects allowed with what the service allows. by names what restricts it; it is empty if nothing does.
func (l limits) restrict(allowed sources.Set) (left sources.Set, by []string) {
	if networks, listed := l.spec.AllowedNetworks(); listed {
		allowed, by = allowed.Intersect(sources.Of(networks...)), append(by, "spec.allowFrom")
	}
	if l.verdict.Restricted {
		names := l.verdict.Policies
		if more := len(names) - namedPolicies; more > 0 {
			names = append(names[:namedPolicies:namedPolicies], fmt.Sprintf("%d more", more))
		}
		allowed, by = allowed.Intersect(l.verdict.Allowed), append(by, "NetworkPolicies "+strings.Join(names, ", "))
	}
	if l.revision != "" {
		for i := range by {
			by[i] += " of revision " + l.revision
		}
	}
	return allowed, by
}

// limitsOf returns the limits of the revisions of a service. One that is missing, or cannot be a revision, is left out.
func (r *reconciler) limitsOf(ctx context.Context, s *v1alpha1.WangellService) (all []limits, err error) {
	for _, t := range s.Spec.Traffic {
		var to v1alpha1.WangellService
		err := r.client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: t.Revision}, &to)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, limits{t.Revision, &to.Spec, r.Verdict(v1alpha1.KeyOf(&to))})
	}
	return all, nil
}

// restrictedCondition reports what restricts the clients of a service, and of the revisions that get its requests.
func restrictedCondition(spec *v1alpha1.WangellServiceSpec, v netpol.Verdict, through ...limits) metav1.Condition {
	const name = v1alpha1.ConditionRestricted
	allowed, reason := sources.All(), "Open"
	var by []string
	for _, l := range append([]limits{{"", spec, v}}, through...) {
		left, why := l.restrict(allowed)
		switch allowed = left; {
		case l.verdict.Restricted:
			reason = "NetworkPolicy"
		case len(why) > 0 && reason == "Open":
			reason = "AllowFrom"
		}
		by = append(by, why...)
	}
	if reason == "Open" {
		return condition(name, false, reason, "")
	}
	message := "clients are restricted by " + strings.Join(by, " and ")
	if _, left := allowed.Within(wire.MaxSourceRules); left > 0 {
		return condition(name, true, "TooLarge", fmt.Sprintf("%s; %d ranges of addresses that they allow are refused, "+
			"because a service has room for %d rules: allow wider networks", message, left, wire.MaxSourceRules))
	}
	return condition(name, true, reason, message)
}
