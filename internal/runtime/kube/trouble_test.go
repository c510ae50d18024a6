// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/runtime"
)

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func TestTroubleOfAPodNamesTheCause(t *testing.T) {
	ran := metav1.NewTime(time.Unix(1e9, 0))
	status := func(state corev1.ContainerState, last ...corev1.ContainerStateTerminated) corev1.PodStatus {
		c := corev1.ContainerStatus{Name: "app", Image: "a/b:1", State: state}
		if len(last) > 0 {
			c.LastTerminationState.Terminated = &last[0]
		}
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c}}
	}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   trouble
	}{
		"nothing yet": {corev1.PodStatus{}, trouble{}},
		"being made":  {status(waiting("ContainerCreating", "")), trouble{}},
		"initialised": {status(waiting("PodInitializing", "")), trouble{}},
		"runs":        {status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ran}}), trouble{}},
		"pull": {status(waiting("ErrImagePull", "manifest unknown")),
			trouble{`pod p: image "a/b:1" cannot be pulled: manifest unknown: check spec.image and what the registry wants`,
				true, true, false, false}},
		"back-off": {status(waiting("ImagePullBackOff", "")),
			trouble{`pod p: image "a/b:1" cannot be pulled: ImagePullBackOff: check spec.image and what the registry wants`,
				true, true, false, false}},
		"name": {status(waiting("InvalidImageName", "x")),
			trouble{`pod p: image "a/b:1" is not a valid name: x: check spec.image and what the registry wants`, true, true,
				false, false}},
		"config": {status(waiting("CreateContainerConfigError", `configmap "c" not found`)),
			trouble{`pod p: the container's configuration is wrong: configmap "c" not found`, true, false, false, false}},
		"crash loop": {status(waiting("CrashLoopBackOff", "back-off 10s"),
			corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", StartedAt: ran}),
			trouble{"pod p: the process ends again and again: exit code 3: Error", true, false, false, false}},
		"no program": {status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128,
			Reason: "StartError", Message: "exec: /x: not found"}}),
			trouble{"pod p: the process cannot be started: exec: /x: not found", true, false, false, false}},
		"ended": {status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error",
			StartedAt: ran}}), trouble{}},
		"sidecar": {corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{Name: "side", Image: "c",
			State: waiting("ErrImagePull", "no")}}},
			trouble{`container side of pod p: image "c" cannot be pulled: no: check spec.image and what the registry wants`,
				true, true, false, false}},
		"no room": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Message: "0/3 nodes are available."}}},
			trouble{"no node takes pod p: 0/3 nodes are available", false, false, true, false}},
	} {
		got := troubleOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: c.status}, "app")
		if got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
		if err := fmt.Errorf("x: %w", got); errors.Is(err, runtime.ErrImage) != c.want.image ||
			errors.Is(err, runtime.ErrUnavailable) {
			t.Errorf("%s: errors.Is matches the wrong error", name)
		}
	}
	if !errors.Is(fmt.Errorf("x: %w", retryable{"y"}), runtime.ErrUnavailable) {
		t.Error("a retryable error is not ErrUnavailable")
	}
}

func TestExitCodeOfAPod(t *testing.T) {
	ran := metav1.NewTime(time.Unix(1e9, 0))
	ended := &corev1.ContainerStateTerminated{ExitCode: 7, StartedAt: ran}
	neverRan := &corev1.ContainerStateTerminated{ExitCode: 128}
	neverBegan := &corev1.ContainerStateTerminated{ExitCode: 128, StartedAt: metav1.NewTime(time.Unix(0, 0))}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		ended  bool
	}{
		"ended": {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: ended}}, true},
		"waits again": {corev1.ContainerStatus{State: waiting("CrashLoopBackOff", ""),
			LastTerminationState: corev1.ContainerState{Terminated: ended}}, true},
		"runs again": {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: corev1.ContainerState{Terminated: ended}}, false},
		"never ran":      {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: neverRan}}, false},
		"not made":       {corev1.ContainerStatus{State: waiting("ContainerCreating", "")}, false},
		"another's":      {corev1.ContainerStatus{Name: "side", State: corev1.ContainerState{Terminated: ended}}, false},
		"1970 is no day": {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: neverBegan}}, false},
	} {
		if c.status.Name == "" {
			c.status.Name = "app"
		}
		status := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c.status}}
		code, ended := exitCodeOf(&corev1.Pod{Status: status}, "app")
		if ended != c.ended || ended && code != 7 {
			t.Errorf("%s: %d, %v", name, code, ended)
		}
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	var e tombstones
	now := time.Unix(1e9, 0)
	e.add("a", now)
	e.add("a", now)
	e.add("b", now.Add(tombstoneAge+time.Second))
	if e.has("a") || !e.has("b") || len(e.order) != 1 {
		t.Errorf("%+v", e)
	}
	for i := range maxTombstones + 10 {
		e.add(fmt.Sprint(i), now.Add(tombstoneAge))
	}
	if len(e.at) > maxTombstones || len(e.order) != len(e.at) || e.has("0") || !e.has(fmt.Sprint(maxTombstones+9)) {
		t.Errorf("%d are remembered", len(e.at))
	}
}
