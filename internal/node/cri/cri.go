// SPDX-License-Identifier: Apache-2.0

// Package cri watches the pods of services on this node through the node's container runtime (CRI v1). The runtime
// reports a pod's network and the states of its containers long before the API server does.
//
// A runtime that streams events (containerd since 1.7, CRI-O with enable_pod_events) is followed. Any other is polled.
package cri

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/runtime"
)

const (
	maxMessage = 16 << 20 // bytes of a response; kubelet's limit
	retryAfter = 200 * time.Millisecond
	// callTimeout bounds a call: one that hangs is made again.
	callTimeout = 10 * time.Second
)

// Config configures a Watcher.
type Config struct {
	// Endpoint is the runtime's socket: unix:///run/containerd/containerd.sock, or only the path.
	Endpoint string
	// OnPodReport gets the events of pods with the label v1alpha1.LabelService: for each pod PodNetworkReady first and
	// PodNetworkGone last; for each of its containers PodContainerCreated, PodContainerStarted and PodContainerExited
	// in this order, also those that happened before the watch began. Times are the runtime's. It is called by one
	// goroutine.
	OnPodReport func(runtime.PodReport)
	// Log may be nil.
	Log *slog.Logger

	// netns is where the runtime creates the network namespaces of pods; netnsFolder if empty.
	netns string
}

// Watcher watches one container runtime.
type Watcher struct {
	cfg    Config
	conn   *grpc.ClientConn
	client criv1.RuntimeServiceClient
	hurry  chan struct{} // holds an element while a pod is expected
	pods   pods
}

// New returns a Watcher, which does nothing before Run. It fails if the endpoint is not the address of a socket.
func New(cfg Config) (*Watcher, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.netns == "" {
		cfg.netns = netnsFolder
	}
	conn, err := dial(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	w := &Watcher{cfg: cfg, conn: conn, client: criv1.NewRuntimeServiceClient(conn), hurry: make(chan struct{}, 1)}
	w.pods.onReport, w.pods.known = cfg.OnPodReport, map[string]*sandbox{}
	return w, nil
}

// dial returns a connection to the socket of an endpoint, which is made when it is used.
func dial(endpoint string) (*grpc.ClientConn, error) {
	target := endpoint
	if strings.HasPrefix(target, "/") {
		target = "unix://" + target
	}
	if !strings.HasPrefix(target, "unix:///") {
		return nil, fmt.Errorf("container runtime %q: want unix:///PATH of its socket", endpoint)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w", endpoint, err)
	}
	return conn, nil
}

// Hurry announces that a pod is expected: a runtime without events is polled more often for a while.
func (w *Watcher) Hurry() {
	select {
	case w.hurry <- struct{}{}:
	default:
	}
}

// netnsFolder is where runtimes create the network namespaces of pods.
const netnsFolder = "/run/netns"
