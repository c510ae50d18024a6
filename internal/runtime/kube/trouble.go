// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// podOf returns a pod from its API object. Started is exact to a second only.
func podOf(o *corev1.Pod, container string) runtime.Pod {
	p := runtime.Pod{
		ID: string(o.UID), Service: v1alpha1.Key(o.Namespace + "/" + o.Labels[v1alpha1.LabelService]),
		SpecHash: o.Labels[v1alpha1.LabelSpecHash], Node: o.Spec.NodeName,
		Addr: parseIPv4(o.Status.PodIP), NodeAddr: parseIPv4(o.Status.HostIP),
	}
	for _, ip := range o.Status.PodIPs {
		if !p.Addr.IsValid() {
			p.Addr = parseIPv4(ip.IP)
		}
	}
	for _, ip := range o.Status.HostIPs {
		if !p.NodeAddr.IsValid() {
			p.NodeAddr = parseIPv4(ip.IP)
		}
	}
	if c := containerStatus(o, container); c != nil && c.State.Running != nil {
		p.Started = monotime.Now().Add(-time.Since(c.State.Running.StartedAt.Time))
	}
	return p
}

// parseIPv4 parses an IPv4 address; it returns the zero value for anything else.
func parseIPv4(text string) netip.Addr {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return a
	}
	return netip.Addr{}
}

// containerStatus returns the status of the main container; nil if it has none yet.
func containerStatus(o *corev1.Pod, container string) *corev1.ContainerStatus {
	for i := range o.Status.ContainerStatuses {
		if c := &o.Status.ContainerStatuses[i]; c.Name == container || container == "" {
			return c
		}
	}
	return nil
}

// exitCodeOf returns the exit status of the main container's process, if it has ended since the pod was created; it may
// be running again.
func exitCodeOf(o *corev1.Pod, container string) (code uint32, ended bool) {
	c := containerStatus(o, container)
	if c == nil {
		return 0, false
	}
	t := c.State.Terminated
	if t == nil && c.State.Running == nil {
		t = c.LastTerminationState.Terminated
	}
	if t == nil || t.StartedAt.IsZero() || t.StartedAt.Unix() <= 0 {
		return 0, false // it never ran: see troubleOf
	}
	return uint32(t.ExitCode), true
}

// trouble is why a pod does not start. It is also an error.
type trouble struct {
	reason        string // empty if there is none
	fatal         bool   // it will not resolve itself soon
	image         bool   // the image cannot be pulled
	unschedulable bool   // the pod fits on no node
	lost          bool   // a single pod on a node without a daemon blocks others
}

// Error implements error.
func (t trouble) Error() string { return t.reason }

// Is implements the interface of errors.Is.
func (t trouble) Is(target error) bool { return t.image && target == runtime.ErrImage }

// retryable is the error of a Start that may work a moment later.
type retryable struct{ reason string }

// Error implements error.
func (e retryable) Error() string { return e.reason }

// Is implements the interface of errors.Is.
func (e retryable) Is(target error) bool { return target == runtime.ErrUnavailable }

// Reasons for which a container waits, as kubelet names them (pkg/kubelet/images and pkg/kubelet/kuberuntime of
// Kubernetes), and what each means.
var (
	imageReasons = map[string]string{
		"ErrImagePull":              "cannot be pulled",
		"ImagePullBackOff":          "cannot be pulled",
		"InvalidImageName":          "is not a valid name",
		"ErrImageNeverPull":         "is not on the node, and imagePullPolicy is Never",
		"ImageInspectError":         "cannot be read on the node",
		"RegistryUnavailable":       "cannot be pulled: the registry does not answer",
		"SignatureValidationFailed": "has a signature that is not accepted",
	}
	containerReasons = map[string]string{
		"CreateContainerConfigError": "the container's configuration is wrong",
		"CreateContainerError":       "the container cannot be created",
		"RunContainerError":          "the process cannot be started",
		"StartError":                 "the process cannot be started",
		"ContainerCannotRun":         "the process cannot be started",
		"PreCreateHookError":         "the container cannot be created",
		"PostStartHookError":         "the postStart hook failed",
		"CrashLoopBackOff":           "the process ends again and again",
	}
)

// troubleOf returns why a pod does not run yet; the zero value if there is no problem.
func troubleOf(o *corev1.Pod, container string) trouble {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			reason := fmt.Sprintf("no node takes pod %s: %s", o.Name, strings.TrimSuffix(c.Message, "."))
			return trouble{reason: reason, unschedulable: true}
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
		for i := range statuses {
			t := containerTrouble(&statuses[i])
			if t.reason == "" {
				continue
			}
			t.reason = fmt.Sprintf("pod %s: %s", o.Name, t.reason)
			if statuses[i].Name != container {
				t.reason = fmt.Sprintf("container %s of %s", statuses[i].Name, t.reason)
			}
			return t
		}
	}
	return trouble{}
}

func containerTrouble(c *corev1.ContainerStatus) trouble {
	w, t := c.State.Waiting, c.State.Terminated
	switch {
	case w != nil && imageReasons[w.Reason] != "":
		reason := fmt.Sprintf("image %q %s: %s: check spec.image and what the registry wants",
			c.Image, imageReasons[w.Reason], detail(w.Message, w.Reason))
		return trouble{reason: reason, fatal: true, image: true}
	case w != nil && containerReasons[w.Reason] != "":
		why := detail(w.Message, w.Reason)
		if last := c.LastTerminationState.Terminated; last != nil {
			why = fmt.Sprintf("exit code %d: %s", last.ExitCode, detail(last.Message, last.Reason))
		}
		return trouble{reason: containerReasons[w.Reason] + ": " + why, fatal: true}
	case t != nil && containerReasons[t.Reason] != "":
		return trouble{reason: containerReasons[t.Reason] + ": " + detail(t.Message, t.Reason), fatal: true}
	}
	return trouble{}
}

// detail returns the message, or the reason if there is none.
func detail(message, reason string) string {
	if message = strings.TrimSpace(message); message == "" {
		return reason
	}
	return message
}
