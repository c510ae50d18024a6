// SPDX-License-Identifier: Apache-2.0

// Package reservation decides which resource requests a frozen pod gives back, which frees room for the scheduler,
// and when it gets them again. Its functions are pure: they decide from the pod object of the API server.
//
// Requests are changed while the pod runs, by its resize subresource
// (https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources). The previous requests are
// first saved in an annotation of the pod, where the next controller finds them.
package reservation

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
)

// Annotation is the annotation that saves the requests that a pod gets back when it runs: JSON, with a quantity for
// each container and resource.
const Annotation = v1alpha1.Group + "/requests"

// least has the requests that a container keeps while it is frozen, unless its own are smaller. Without any, the pod
// could change its QoS class.
var least = corev1.ResourceList{
	corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("8Mi"),
}

// resources are those whose requests can be changed.
var resources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// Set selects the resources whose requests are meant.
type Set struct{ CPU, Memory bool }

// has reports whether a resource is in the set.
func (s Set) has(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU && s.CPU || name == corev1.ResourceMemory && s.Memory
}

// Without returns the resources of s that are not in o.
func (s Set) Without(o Set) Set { return Set{s.CPU && !o.CPU, s.Memory && !o.Memory} }

// requests are the requests of containers, by container name and resource name.
type requests map[string]map[corev1.ResourceName]resource.Quantity

func (r requests) set(container string, name corev1.ResourceName, q resource.Quantity) {
	if r[container] == nil {
		r[container] = map[corev1.ResourceName]resource.Quantity{}
	}
	r[container][name] = q
}

// Step is the next request to the API server for a pod: a strategic merge patch, which fails for another pod of the
// same name. The zero value means that there is nothing to do.
type Step struct {
	// Resize is set for a patch of the resize subresource, as opposed to the pod itself.
	Resize bool
	// Lowers is set if the step lowers a request.
	Lowers bool
	Patch  []byte
}

// Next returns the next step towards a pod that has given back its requests for the resources in give and has its own
// requests for all others. Call it again with the updated pod until nothing is left to do. Requests that somebody
// else has changed in the meantime stay as they are. It fails if the annotation cannot be read.
//
// These keep their requests: pods of the QoS classes Guaranteed, whose class would change, and BestEffort, which have
// none; pods with resources of their own beside those of their containers, which cannot be resized; pods that end;
// containers that would be restarted by the change; and init containers that end before the others start.
func Next(pod *corev1.Pod, give Set) (Step, error) {
	if pod.DeletionTimestamp != nil {
		return Step{}, nil
	}
	noted, err := read(pod)
	if err != nil {
		return Step{}, err
	}
	if noted == nil {
		if given := giveable(pod, give); given != nil {
			return note(pod, given)
		}
		return Step{}, nil
	}
	changed, lowers := requests{}, false
	for c := range resizable(pod) {
		for name, was := range noted[c.Name] {
			now, low := c.Resources.Requests[name], least[name]
			switch {
			case give.has(name) && now.Cmp(was) == 0:
				changed.set(c.Name, name, low)
				lowers = true
			case !give.has(name) && now.Cmp(low) == 0:
				changed.set(c.Name, name, was)
			}
		}
	}
	switch {
	case len(changed) > 0:
		patch, err := resizePatch(pod, changed)
		return Step{Resize: true, Lowers: lowers, Patch: patch}, err
	case give == Set{}:
		return note(pod, nil)
	}
	return Step{}, nil
}

// Given returns what a pod has given back, in cores and bytes.
func Given(pod *corev1.Pod) (cpu, memory float64) {
	noted, err := read(pod)
	if err != nil {
		return 0, 0
	}
	for c := range resizable(pod) {
		for name, was := range noted[c.Name] {
			if now := c.Resources.Requests[name]; now.Cmp(least[name]) == 0 {
				was.Sub(now)
				if name == corev1.ResourceCPU {
					cpu += was.AsApproximateFloat64()
				} else {
					memory += was.AsApproximateFloat64()
				}
			}
		}
	}
	return cpu, memory
}

// Noted reports whether a pod has given something back, or may have.
func Noted(pod *corev1.Pod) bool { return pod.Annotations[Annotation] != "" }

// Pending returns why kubelet has not applied the requests in a pod's spec, and whether it never will; empty if it
// has applied them.
func Pending(pod *corev1.Pod) (why string, forGood bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodResizePending || c.Status != corev1.ConditionTrue ||
			c.ObservedGeneration != 0 && c.ObservedGeneration < pod.Generation {
			continue
		}
		why = c.Message
		if why == "" {
			why = c.Reason
		}
		return why, c.Reason == corev1.PodReasonInfeasible
	}
	return "", false
}

// giveable returns the requests that a pod can give back; nil if there are none.
func giveable(pod *corev1.Pod, give Set) requests {
	if pod.Status.QOSClass != corev1.PodQOSBurstable {
		return nil
	}
	if r := pod.Spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		return nil
	}
	var found requests
	for c := range resizable(pod) {
		for _, name := range resources {
			q, ok := c.Resources.Requests[name]
			if ok && give.has(name) && q.Cmp(least[name]) > 0 && !restarts(c, name) {
				if found == nil {
					found = requests{}
				}
				found.set(c.Name, name, q)
			}
		}
	}
	return found
}

// resizable yields the containers of a pod whose requests can be changed: all but those that end before others start.
func resizable(pod *corev1.Pod) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.InitContainers {
			if c := &pod.Spec.InitContainers[i]; v1alpha1.IsSidecar(c.RestartPolicy) && !yield(c) {
				return
			}
		}
	}
}

// restarts reports whether a change of a request restarts the container.
func restarts(c *corev1.Container, name corev1.ResourceName) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.ResourceName == name && p.RestartPolicy == corev1.RestartContainer
	})
}

// read returns the requests that the annotation of a pod has; nil if there is none.
func read(pod *corev1.Pod) (requests, error) {
	text := pod.Annotations[Annotation]
	if text == "" {
		return nil, nil
	}
	var noted requests
	err := json.Unmarshal([]byte(text), &noted)
	for _, of := range noted {
		for name, q := range of {
			if !slices.Contains(resources, name) || q.Cmp(least[name]) <= 0 {
				err = fmt.Errorf("%s: %s", name, q.String())
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s: annotation %s is not a list of its containers' requests (%w): the pod keeps the "+
			"ones it has; delete the pod to restore those of its Deployment", pod.Name, Annotation, err)
	}
	return noted, nil
}

// note writes requests to the annotation of a pod, or removes it if there are none.
func note(pod *corev1.Pod, noted requests) (Step, error) {
	var value any // null removes it
	if noted != nil {
		text, err := json.Marshal(noted)
		if err != nil {
			return Step{}, err
		}
		value = string(text)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{Annotation: value}},
	})
	return Step{Lowers: noted != nil, Patch: patch}, err
}

// resizePatch changes requests of a pod.
func resizePatch(pod *corev1.Pod, changed requests) ([]byte, error) {
	list := func(of []corev1.Container) (entries []any) {
		for i := range of {
			if r := changed[of[i].Name]; r != nil {
				entries = append(entries, map[string]any{"name": of[i].Name, "resources": map[string]any{"requests": r}})
			}
		}
		return entries
	}
	spec := map[string]any{}
	for field, of := range map[string][]corev1.Container{
		"containers": pod.Spec.Containers, "initContainers": pod.Spec.InitContainers,
	} {
		if entries := list(of); entries != nil {
			spec[field] = entries
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "spec": spec})
}
