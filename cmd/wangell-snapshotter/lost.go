// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/api/v1alpha1"
)

const (
	// lostTimeout bounds the calls of containerd's API.
	lostTimeout = 20 * time.Second
	// kubernetes is containerd's namespace for the pods of Kubernetes.
	kubernetes = "k8s.io"
	// labelKind is the label of its containers there, and kindContainer the value for all but pause containers, which
	// read no further files.
	labelKind     = "io.cri-containerd.kind"
	kindContainer = "container"
)

// lost are the containers of pods that ran with the snapshotter before it serves: their files were lost with its
// predecessor.
type lost struct {
	client *containerd.Client
	tasks  []containerd.Task
	log    *slog.Logger
}

// findLost returns the containers that run now. It is called before the snapshotter serves.
func findLost(ctx context.Context, address string, log *slog.Logger) (*lost, error) {
	client, err := containerd.New(address, containerd.WithTimeout(lostTimeout))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w: check --containerd-address", address, err)
	}
	l := &lost{client: client, log: log}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, kubernetes), lostTimeout)
	defer cancel()
	list, err := client.Containers(ctx, fmt.Sprintf("labels.%q==%s", labelKind, kindContainer))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list the containers of containerd at %s: %w", address, err), client.Close())
	}
	for _, c := range list {
		info, err := c.Info(ctx, containerd.WithoutRefreshedMetadata)
		if err != nil || info.Snapshotter != v1alpha1.LazyRuntime {
			continue
		}
		if t, err := c.Task(ctx, nil); err == nil {
			l.tasks = append(l.tasks, t)
		}
	}
	return l, nil
}

// kill kills the containers, so that kubelet restarts them, and closes the connection.
func (l *lost) kill(ctx context.Context) {
	defer l.client.Close()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, kubernetes), lostTimeout)
	defer cancel()
	for _, t := range l.tasks {
		switch err := t.Kill(ctx, unix.SIGKILL, containerd.WithKillAll); {
		case err == nil:
			l.log.Warn("container is killed, as its files were lost with an earlier snapshotter", "container", t.ID())
		case !errdefs.IsNotFound(err):
			l.log.Error("container has lost its files and cannot be killed: delete its pod", "container", t.ID(), "error", err)
		}
	}
}
