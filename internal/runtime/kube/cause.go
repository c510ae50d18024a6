// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// cause is why a pod or its process ended, where the exit status of the process does not say so.
type cause struct {
	text    string // empty if it is not known
	outside bool   // the pod was ended by others: the exit status means nothing
}

// Reasons in the status of a pod (pkg/kubelet, pkg/util/node of Kubernetes), and what each means.
var podReasons = map[string]string{
	"Evicted":                  "was evicted by its node",
	"Preempting":               "was preempted by its node in favour of a critical pod",
	"Preempted":                "was preempted",
	"DeadlineExceeded":         "has run for its activeDeadlineSeconds",
	"NodeLost":                 "was on a node that is lost",
	"Terminated":               "was ended because its node shuts down",
	"Shutdown":                 "was ended because its node shuts down",
	"NodeShutdown":             "was refused by its node, which shuts down",
	"NodeAffinity":             "was refused by its node",
	"UnexpectedAdmissionError": "was refused by its node",
}

// Reasons of the condition DisruptionTarget
// (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions), and what each means.
var disruptions = map[string]string{
	corev1.PodReasonPreemptionByScheduler: "was preempted by the scheduler",
	corev1.PodReasonTerminationByKubelet:  "was ended by its node",
	"DeletionByTaintManager":              "was deleted because of a taint of its node",
	"EvictionByEvictionAPI":               "was evicted through the API, as kubectl drain does it",
	"DeletionByPodGC":                     "was deleted because its node is gone",
}

// causeOf returns the cause of a pod's end according to its status. A cause of the whole pod takes precedence over one
// of its main container.
func causeOf(o *corev1.Pod, container string) cause {
	s := &o.Status
	if s.Reason != "" {
		what := podReasons[s.Reason]
		switch {
		case what != "":
		case strings.HasPrefix(s.Reason, "OutOf"): // OutOfcpu, OutOfpods, ...
			what = "was refused by its node"
		default:
			what = "failed"
		}
		return ended(o.Name, what, s.Reason, s.Message)
	}
	for _, c := range s.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			what := disruptions[c.Reason]
			if what == "" {
				what = "was ended by others"
			}
			return ended(o.Name, what, c.Reason, c.Message)
		}
	}
	if c := containerStatus(o, container); c != nil {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t == nil {
				continue
			}
			switch t.Reason {
			case "", "Error", "Completed": // which the exit status says
			case "OOMKilled":
				return cause{text: "out of memory (OOMKilled): its limit is resources.limits.memory"}
			default:
				return cause{text: because(t.Reason, t.Message)}
			}
		}
	}
	return cause{}
}

// ended is the cause of a pod that others have ended.
func ended(pod, what, reason, message string) cause {
	return cause{text: fmt.Sprintf("pod %s %s (%s)", pod, what, because(reason, message)), outside: true}
}

// because joins a reason and its message, if there is one.
func because(reason, message string) string {
	if message = strings.TrimRight(strings.TrimSpace(message), "."); message == "" {
		return reason
	}
	return reason + ": " + message
}
