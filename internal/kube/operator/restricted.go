// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/netpol"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/wire"
)

// namedPolicies is how many policies the condition names.
const namedPolicies = 10

// restrictedCondition reports what restricts the clients of a service.
func restrictedCondition(spec *v1alpha1.WangellServiceSpec, v netpol.Verdict) metav1.Condition {
	const name = v1alpha1.ConditionRestricted
	allowed, reason, by := sources.All(), "Open", []string{}
	if networks, listed := spec.AllowedNetworks(); listed {
		allowed, reason, by = sources.Of(networks...), "AllowFrom", append(by, "spec.allowFrom")
	}
	if v.Restricted {
		names := v.Policies
		if more := len(names) - namedPolicies; more > 0 {
			names = append(names[:namedPolicies:namedPolicies], fmt.Sprintf("%d more", more))
		}
		allowed, reason = allowed.Intersect(v.Allowed), "NetworkPolicy"
		by = append(by, "NetworkPolicies "+strings.Join(names, ", "))
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
