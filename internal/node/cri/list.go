// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// list lists all pods and reports what has changed.
func (w *Watcher) list(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sandboxes, err := w.client.ListPodSandbox(call, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	ready := map[string]bool{}
	for _, s := range sandboxes.Items {
		if s.Labels[v1alpha1.LabelService] == "" || s.State != criv1.PodSandboxState_SANDBOX_READY {
			continue
		}
		ready[s.Id] = true
		if err := w.learn(ctx, s.Id); err != nil {
			return err
		}
	}
	if len(w.pods.known) == 0 {
		return nil
	}
	list, err := w.client.ListContainers(call, &criv1.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	w.pods.forgetOthers(list.Containers)
	changed := map[string][]*criv1.ContainerStatus{}
	for _, c := range list.Containers {
		if !w.pods.advanced(c) {
			continue
		}
		r, err := w.client.ContainerStatus(call, &criv1.ContainerStatusRequest{ContainerId: c.Id})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return fmt.Errorf("status of container %s: %w", c.Id, err)
		}
		changed[c.PodSandboxId] = append(changed[c.PodSandboxId], r.Status)
	}
	for id, statuses := range changed {
		w.pods.containers(id, statuses)
	}
	for id := range w.pods.known {
		if !ready[id] {
			w.pods.networkGone(id, time.Now().UnixNano())
		}
	}
	return nil
}

// learn queries a pod that is not known yet, and reports its network.
func (w *Watcher) learn(ctx context.Context, id string) error {
	if w.pods.known[id] != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := w.client.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if status.Code(err) == codes.NotFound {
		return nil // it is gone
	}
	if err != nil {
		return fmt.Errorf("status of pod %s: %w", id, err)
	}
	s := r.Status
	name := s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName()
	switch {
	case s.State != criv1.PodSandboxState_SANDBOX_READY:
		return nil
	case s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == criv1.NamespaceMode_NODE:
		w.cfg.Log.Warn("a pod uses the network of its node, where the gate cannot serve it: set hostNetwork: false",
			"pod", name)
		return nil
	}
	addr, err := address(s.Network)
	if err != nil {
		w.cfg.Log.Warn("cannot serve a pod", "pod", name, "error", err)
		return nil
	}
	netns, err := namespace(r.Info)
	if err != nil {
		w.cfg.Log.Warn("cannot serve a pod", "pod", name, "error", err)
		return nil
	}
	w.pods.networkReady(s, addr, netns)
	return nil
}
