// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime/kube"
	"wangell.loutres.me/internal/status"
)

// problem returns what a user has to fix, in one line; empty if there is nothing to fix.
func problem(out outcome, trouble kube.Trouble) string {
	switch {
	case len(out.invalid) > 0:
		return strings.ReplaceAll(out.invalid.Error(), "\n", "; ")
	case out.refused != nil:
		return out.refused.Error()
	case out.addrErr != nil:
		return out.addrErr.Error()
	case out.put != nil:
		return out.put.Error()
	case out.revisions != "":
		return out.revisions
	}
	return trouble.Reason
}

// condition returns a condition. message may be empty.
func condition(name string, is bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if is {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func readyCondition(out outcome, o observed, st v1alpha1.WangellServiceStatus) metav1.Condition {
	const name = v1alpha1.ConditionReady
	switch {
	case len(out.invalid) > 0:
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	case out.refused != nil:
		return condition(name, false, "Refused", out.refused.Error())
	case out.addrErr != nil:
		return condition(name, false, "NoAddress", out.addrErr.Error())
	case out.put != nil:
		return condition(name, false, "Refused", out.put.Error())
	case out.revisions != "":
		return condition(name, false, "RevisionMissing", out.revisions)
	case !o.known && apimeta.IsStatusConditionTrue(st.Conditions, name):
		// The daemons still serve what the previous controller published.
		return *apimeta.FindStatusCondition(st.Conditions, name)
	case !o.known:
		return condition(name, false, "Starting", "the controller is starting")
	case o.alone:
		return condition(name, false, "NoDaemon",
			"no daemon is connected to the controller: check the pods of the daemons' DaemonSet and their logs")
	case o.starting && !apimeta.IsStatusConditionTrue(st.Conditions, name):
		return condition(name, false, "Starting", "daemons are connecting to the controller")
	case o.lost != "":
		return condition(name, false, reasonNodeLost, o.lost)
	case o.removing:
		return condition(name, false, "Starting", "pods of an earlier service with this name are still ending: until then, "+
			"clients are refused")
	case st.State == lifecycle.Failed.String():
		return condition(name, false, "WakeFailed", o.status.Message)
	case st.State == lifecycle.Warm.String():
		return condition(name, true, "Serving", "")
	}
	return condition(name, true, "CanWake", "")
}

func awakeCondition(o observed, st v1alpha1.WangellServiceStatus) metav1.Condition {
	if !o.known {
		return condition(v1alpha1.ConditionAwake, false, "Unknown", "")
	}
	return condition(v1alpha1.ConditionAwake, st.State == lifecycle.Warm.String(), st.State, "")
}

func addressCondition(out outcome) metav1.Condition {
	const name = v1alpha1.ConditionAddressAssigned
	var reason addressError
	switch {
	case len(out.invalid) > 0:
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	case out.refused != nil && !out.addr.IsValid():
		return condition(name, false, "Refused", out.refused.Error())
	case errors.As(out.addrErr, &reason):
		return condition(name, false, reason.reason, reason.message)
	case out.put != nil:
		return condition(name, false, "Conflict", out.put.Error())
	}
	message := ""
	switch {
	case out.host != "":
		message = fmt.Sprintf("clients outside of the cluster use the host name %s", out.host)
	case out.inside:
		message = "only clients of the cluster have the address: spec.service.type is ClusterIP"
	}
	return condition(name, true, "Assigned", message)
}

func progressingCondition(out outcome) metav1.Condition {
	const name = v1alpha1.ConditionProgressing
	switch d := out.deploy; {
	case len(out.invalid) > 0:
		return condition(name, false, "Invalid", problem(out, kube.Trouble{}))
	case out.refused != nil:
		return condition(name, false, "Refused", out.refused.Error())
	case d != nil && rollingOut(d):
		return condition(name, true, "RollingOut", fmt.Sprintf("%d of %d pods are of the present spec",
			d.Status.UpdatedReplicas, *d.Spec.Replicas))
	}
	return condition(name, false, "Complete", "")
}

// rollingOut reports whether pods of an older spec are being replaced.
func rollingOut(d *appsv1.Deployment) bool {
	return d.Status.Replicas > d.Status.UpdatedReplicas && d.Spec.Replicas != nil && *d.Spec.Replicas > 0
}

// reasonNodeLost is the reason of conditions and of an Event: a pod on a silent node blocks others.
const reasonNodeLost = "NodeLost"

// isLost reports whether a status has a pod on a silent node.
func isLost(s *v1alpha1.WangellServiceStatus) bool {
	c := apimeta.FindStatusCondition(s.Conditions, v1alpha1.ConditionStalled)
	return c != nil && c.Reason == reasonNodeLost
}

// stalledCondition reports that a pod on a silent node blocks others, or that a rollout is stuck: the Deployment has
// given up or, where pods are made beside a paused Deployment because only one may write, the only pod does not
// start.
func stalledCondition(out outcome, lost string, st v1alpha1.WangellServiceStatus, trouble kube.Trouble,
) metav1.Condition {
	const name = v1alpha1.ConditionStalled
	switch {
	case lost != "":
		return condition(name, true, reasonNodeLost, lost)
	case out.deploy == nil:
	case out.deploy.Spec.Paused:
		if st.State == lifecycle.Failed.String() {
			return condition(name, true, "WakeFailed", st.Message)
		}
	default:
		for _, c := range out.deploy.Status.Conditions {
			if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
				message := c.Message
				if trouble.Reason != "" {
					message += ": " + trouble.Reason
				}
				return condition(name, true, c.Reason, message)
			}
		}
	}
	return condition(name, false, "Progressing", "")
}

// pressureCondition reports scarce resources in the gates of nodes.
func pressureCondition(p status.Pressure) metav1.Condition {
	if p == (status.Pressure{}) {
		return condition(v1alpha1.ConditionGatePressure, false, "NoPressure", "")
	}
	return condition(v1alpha1.ConditionGatePressure, true, string(p.Reason), p.Message)
}

// reservedCondition reports whether running pods have their requests reserved, and whether frozen ones give them
// back.
func reservedCondition(r reservation.Summary) metav1.Condition {
	const name = v1alpha1.ConditionRequestsReserved
	switch {
	case r.Short != "":
		return condition(name, false, "NoRoom", r.Short)
	case r.Kept != "":
		return condition(name, true, "KeptWhileFrozen", r.Kept)
	}
	return condition(name, true, "Reserved", "")
}

// imageCondition reports whether nodes have the images of a service ahead of need.
func imageCondition(o observed) metav1.Condition {
	if o.images.Ready == "" {
		return metav1.Condition{Type: v1alpha1.ConditionImageReady, Status: metav1.ConditionUnknown, Reason: "Starting",
			Message: "the controller waits for the daemons of the nodes"}
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionImageReady, Status: metav1.ConditionStatus(o.images.Ready), Reason: o.images.Reason,
		Message: o.images.Message,
	}
}

// notKeptCondition tells of volumes of images that are lost with each pod.
func notKeptCondition(o observed) metav1.Condition {
	return condition(v1alpha1.ConditionVolumesNotKept, true, "NotMounted", o.images.VolumesNotKept)
}

// balancedCondition tells which nodes have no Envoy, on which the requests of a service depend. splits is set for one
// that has no pods of its own.
func balancedCondition(f fronts, splits bool) metav1.Condition {
	message := f.message
	switch {
	case message == "":
	case splits:
		message += ": clients that come through them wait for a minute and are then refused"
	default:
		message += ": connections that come through them are balanced, and not requests"
	}
	if message != "" {
		message += "; kubectl wangell doctor says why"
	}
	return condition(v1alpha1.ConditionRequestsBalanced, f.reason == v1alpha1.ReasonBalanced, f.reason, message)
}

func scheduledCondition(t kube.Trouble) metav1.Condition {
	if t.Unschedulable {
		return condition(v1alpha1.ConditionScheduled, false, "Unschedulable", t.Reason)
	}
	return condition(v1alpha1.ConditionScheduled, true, "Scheduled", "")
}
