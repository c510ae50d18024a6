// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/test/testutil/netlab"
)

// QuietTime is how long UntilZero wants to see no pod, so that all components have recorded the end of the last one.
const QuietTime = 2 * time.Second

// killAgain is the pause before the containers of a terminating pod are killed again.
const killAgain = 5 * time.Second

// Pods returns the experiment's pods with a label, or all if selector is empty. It includes terminating ones.
func (c *Cluster) Pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := c.Kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

// UntilZero waits until the experiment has had no pod for QuietTime.
func (c *Cluster) UntilZero(ctx context.Context) error {
	var since time.Time
	return Until(ctx, ZeroTimeout, func() error {
		pods, err := c.Pods(ctx, "")
		if err != nil {
			return err
		}
		if len(pods) > 0 {
			since = time.Time{}
			return errors.Join(fmt.Errorf("pod %s still exists", pods[0].Name), c.killTerminating(ctx, pods))
		}
		if since.IsZero() {
			since = time.Now()
		}
		if quiet := time.Since(since); quiet < QuietTime {
			return fmt.Errorf("there has been no pod for only %v", quiet)
		}
		return nil
	})
}

// killTerminating kills the containers of terminating pods. Some would use their whole grace period without any client,
// and a container that starts while its pod ends may miss SIGTERM: it is killed by a later call.
func (c *Cluster) killTerminating(ctx context.Context, pods []corev1.Pod) error {
	for _, p := range pods {
		if p.DeletionTimestamp == nil || time.Since(c.killed[p.UID]) < killAgain {
			continue
		}
		if err := c.Nodes.kill(ctx, string(p.UID)); err != nil {
			return fmt.Errorf("kill pod %s: %w", p.Name, err)
		}
		c.killed[p.UID] = time.Now()
	}
	return nil
}

// Ready reports whether a pod is Ready by the API and not terminating.
func Ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// CountReady counts the pods that are ready, and the others, which start or end.
func CountReady(pods []corev1.Pod) (ready, others int) {
	for i := range pods {
		if Ready(&pods[i]) {
			ready++
		} else {
			others++
		}
	}
	return ready, others
}

// podNamespace returns the network namespace of a running pod.
func podNamespace(pod *corev1.Pod) (*netlab.Namespace, error) {
	pid, err := podProcess(string(pod.UID))
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	return netlab.Existing(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// podProcess finds a process of a pod by its cgroup, which kubelet names after the pod's UID.
func podProcess(uid string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(data), "/pod"+uid) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/cgroup", &pid); err == nil {
			return pid, nil
		}
	}
	return 0, errors.New("its cgroup has no process")
}
