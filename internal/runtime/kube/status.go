// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// apiPod is a pod as the API knows it. Started is exact to a second only.
func apiPod(o *corev1.Pod, container string) runtime.Pod {
	p := runtime.Pod{
		ID: string(o.UID), Service: runtime.Key(o.Namespace + "/" + o.Labels[v1alpha1.LabelService]),
		SpecHash: o.Labels[v1alpha1.LabelSpecHash], Node: o.Spec.NodeName,
	}
	p.Addr = firstIPv4(o.Status.PodIP, o.Status.PodIPs)
	p.NodeAddr = hostIPv4(o.Status.HostIP, o.Status.HostIPs)
	if c := containerStatus(o, container); c != nil && c.State.Running != nil {
		p.Started = monotime.Now().Add(-time.Since(c.State.Running.StartedAt.Time))
	}
	return p
}

func firstIPv4(first string, all []corev1.PodIP) netip.Addr {
	for _, ip := range append([]corev1.PodIP{{IP: first}}, all...) {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func hostIPv4(first string, all []corev1.HostIP) netip.Addr {
	for _, ip := range append([]corev1.HostIP{{IP: first}}, all...) {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// containerStatus is that of the main container; nil if there is none yet.
func containerStatus(o *corev1.Pod, container string) *corev1.ContainerStatus {
	for i := range o.Status.ContainerStatuses {
		if c := &o.Status.ContainerStatuses[i]; c.Name == container || container == "" {
			return c
		}
	}
	return nil
}

// endedWith is the exit status of the main container's process, if it ended since the pod was made: it may be running
// again.
func endedWith(o *corev1.Pod, container string) (code uint32, ended bool) {
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

// trouble is what holds a pod up.
type trouble struct {
	reason string
	fatal  bool // it will not come right by itself soon
	image  bool // the image cannot be had
	// unschedulable: no node takes it
	unschedulable bool
}

// Error implements error.
func (t trouble) Error() string { return t.reason }

// Is implements errors.Is.
func (t trouble) Is(target error) bool { return t.image && target == runtime.ErrImage }

// retryable is a reason for which the same Start may work a moment later.
type retryable struct{ reason string }

// Error implements error.
func (e retryable) Error() string { return e.reason }

// Is implements errors.Is.
func (e retryable) Is(target error) bool { return target == runtime.ErrUnavailable }

// Reasons for which a container waits, as kubelet names them (pkg/kubelet/images and pkg/kubelet/kuberuntime), and what to check.
var (
	imageReasons = map[string]string{
		"ErrImagePull": "cannot be pulled", "ImagePullBackOff": "cannot be pulled", "InvalidImageName": "is not a valid name",
		"ErrImageNeverPull": "is not on the node, and imagePullPolicy is Never", "ImageInspectError": "cannot be read on the node",
		"RegistryUnavailable": "cannot be pulled: the registry does not answer", "SignatureValidationFailed": "has a signature that is not accepted",
	}
	containerReasons = map[string]string{
		"CreateContainerConfigError": "the container's configuration is wrong", "CreateContainerError": "the container cannot be created",
		"RunContainerError": "the process cannot be started", "StartError": "the process cannot be started",
		"ContainerCannotRun": "the process cannot be started", "PreCreateHookError": "the container cannot be created",
		"PostStartHookError": "the postStart hook failed", "CrashLoopBackOff": "the process ends again and again",
	}
)

// troubleOf tells what holds up a pod that is not running yet; no reason if nothing does.
func troubleOf(o *corev1.Pod, container string) trouble {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return trouble{reason: fmt.Sprintf("no node takes pod %s: %s", o.Name, strings.TrimSuffix(c.Message, ".")), unschedulable: true}
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
		for i := range statuses {
			if t := containerTrouble(&statuses[i]); t.reason != "" {
				if t.reason = fmt.Sprintf("pod %s: %s", o.Name, t.reason); statuses[i].Name != container {
					t.reason = fmt.Sprintf("container %s of %s", statuses[i].Name, t.reason)
				}
				return t
			}
		}
	}
	return trouble{}
}

func containerTrouble(c *corev1.ContainerStatus) trouble {
	w, t := c.State.Waiting, c.State.Terminated
	switch {
	case w != nil && imageReasons[w.Reason] != "":
		return trouble{fmt.Sprintf("image %q %s: %s: check spec.image and what the registry wants", c.Image, imageReasons[w.Reason], detail(w.Message, w.Reason)), true, true, false}
	case w != nil && containerReasons[w.Reason] != "":
		why := detail(w.Message, w.Reason)
		if last := c.LastTerminationState.Terminated; last != nil {
			why = fmt.Sprintf("exit code %d: %s", last.ExitCode, detail(last.Message, last.Reason))
		}
		return trouble{containerReasons[w.Reason] + ": " + why, true, false, false}
	case t != nil && containerReasons[t.Reason] != "":
		return trouble{fmt.Sprintf("%s: %s", containerReasons[t.Reason], detail(t.Message, t.Reason)), true, false, false}
	}
	return trouble{}
}

// detail is a message, or the reason alone if there is none.
func detail(message, reason string) string {
	if message = strings.TrimSpace(message); message == "" {
		return reason
	}
	return message
}

// endedPods remembers pods that are gone, so that what is told late does not make them anew.
type endedPods struct {
	at    map[string]time.Time
	order []string
}

// endedMemory and endedMost bound what is remembered: late news come within seconds.
const (
	endedMemory = 10 * time.Minute
	endedMost   = 100_000
)

func (e *endedPods) add(uid string, now time.Time) {
	if e.at == nil {
		e.at = map[string]time.Time{}
	}
	for len(e.order) > 0 && (len(e.order) >= endedMost || now.Sub(e.at[e.order[0]]) > endedMemory) {
		delete(e.at, e.order[0])
		e.order = e.order[1:]
	}
	if _, there := e.at[uid]; !there {
		e.at[uid] = now
		e.order = append(e.order, uid)
	}
}

func (e *endedPods) has(uid string) bool {
	_, there := e.at[uid]
	return there
}
