// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/process"
)

// preparedPod is a pod whose first process waits before it becomes the program. It has its network and its volumes.
type preparedPod struct {
	*pod
	pid   uint32
	begun monotime.Time // when the waiting process began, which distinguishes it from a later one with its PID
	made  time.Time
	held  *process.Process // the waiting process, once the pod is taken for a wake
}

// preparedPods are the services with spec.sleep.prepared, and their prepared pods, oldest first. They are guarded by
// Runtime.mu.
type preparedPods struct {
	services map[v1alpha1.Key]*v1alpha1.WangellService
	pods     map[v1alpha1.Key][]*preparedPod
	pause    map[v1alpha1.Key]time.Time // no pod is made until then, because the last attempt failed
}

func (c *preparedPods) init() {
	c.services, c.pods = map[v1alpha1.Key]*v1alpha1.WangellService{}, map[v1alpha1.Key][]*preparedPod{}
	c.pause = map[v1alpha1.Key]time.Time{}
}

// want sets what a service asks for.
func (c *preparedPods) want(s *v1alpha1.WangellService) {
	k := v1alpha1.KeyOf(s)
	delete(c.pause, k)
	if s.Spec.PreparedPods() > 0 {
		c.services[k] = s
	} else {
		delete(c.services, k)
	}
}

// drop removes the matching pods and returns them.
func (c *preparedPods) drop(match func(*preparedPod) bool) (dropped []*preparedPod) {
	for k, list := range c.pods {
		c.pods[k] = slices.DeleteFunc(list, func(p *preparedPod) bool {
			if match(p) {
				dropped = append(dropped, p)
				return true
			}
			return false
		})
		if len(c.pods[k]) == 0 {
			delete(c.pods, k)
		}
	}
	return dropped
}
