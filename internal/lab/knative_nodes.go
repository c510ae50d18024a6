// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/lifecycle"
)

// nodeRuntimes are the container runtimes of a cluster's nodes.
type nodeRuntimes struct {
	names []string
	conns []*grpc.ClientConn
}

func dialNodes(file clusterFile) (*nodeRuntimes, error) {
	n := &nodeRuntimes{}
	for _, node := range file.Nodes {
		conn, err := grpc.NewClient("unix://"+node.ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("the runtime of %s: %w", node.Name, err), n.close())
		}
		n.names, n.conns = append(n.names, node.Name), append(n.conns, conn)
	}
	return n, nil
}

func (n *nodeRuntimes) close() error {
	var errs []error
	for _, c := range n.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// pull brings an image to every node: no request shall have to wait for that.
func (n *nodeRuntimes) pull(ctx context.Context, reference string) error {
	for i, c := range n.conns {
		_, err := criv1.NewImageServiceClient(c).PullImage(ctx, &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: reference}})
		if err != nil {
			return fmt.Errorf("pull %s on %s: %w", reference, n.names[i], err)
		}
	}
	return nil
}

// kill ends the containers of a pod at once. That the pod has none is no error.
func (n *nodeRuntimes) kill(ctx context.Context, uid string) error {
	for i, c := range n.conns {
		client := criv1.NewRuntimeServiceClient(c)
		list, err := client.ListContainers(ctx, &criv1.ListContainersRequest{
			Filter: &criv1.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid}}})
		if err != nil {
			return fmt.Errorf("containers of %s: %w", n.names[i], err)
		}
		for _, container := range list.Containers {
			_, err := client.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: container.Id})
			if err != nil && status.Code(err) != codes.NotFound {
				return fmt.Errorf("end container %s on %s: %w", container.GetMetadata().GetName(), n.names[i], err)
			}
		}
	}
	return nil
}

// podEvents tells what the runtimes do for one pod.
type podEvents struct {
	// phases are the wall-clock times at which phases ended.
	phases map[lifecycle.PhaseName]time.Time
	// addr is the pod's address; there is one once its sandbox is.
	addr netip.Addr
}

// take adds an event.
func (e *podEvents) take(event *criv1.ContainerEventResponse) {
	sandbox := event.PodSandboxStatus
	// As in Wangell's own phases: when the runtime says that it made the sandbox.
	e.phases[lifecycle.PhaseSandbox] = time.Unix(0, sandbox.CreatedAt)
	if event.ContainerId != sandbox.Id {
		at := time.Unix(0, event.CreatedAt)
		switch event.ContainerEventType {
		case criv1.ContainerEventType_CONTAINER_CREATED_EVENT:
			e.phases[lifecycle.PhaseCreated] = at
		case criv1.ContainerEventType_CONTAINER_STARTED_EVENT:
			e.phases[lifecycle.PhaseStarted] = at
		}
	}
	if addr, err := netip.ParseAddr(sandbox.GetNetwork().GetIp()); err == nil {
		e.addr = addr
	}
}

// until takes events until a phase has ended and the pod has an address.
func (e *podEvents) until(ctx context.Context, phase lifecycle.PhaseName, events <-chan *criv1.ContainerEventResponse) error {
	for e.phases[phase].IsZero() || !e.addr.IsValid() {
		select {
		case event := <-events:
			e.take(event)
		case <-ctx.Done():
			return fmt.Errorf("the node's runtime does not tell of phase %q: %w", phase, ctx.Err())
		}
	}
	return nil
}

// watch follows the events of one pod on all nodes. The channel gets them until stop, which waits until all have been
// given; it must be called.
func (n *nodeRuntimes) watch(ctx context.Context, namespace, pod string) (events <-chan *criv1.ContainerEventResponse, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	all := make(chan *criv1.ContainerEventResponse, 64) // more than a pod has
	var ends []chan struct{}
	stop = func() {
		cancel()
		for _, end := range ends {
			<-end
		}
	}
	for i, c := range n.conns {
		stream, err := criv1.NewRuntimeServiceClient(c).GetContainerEvents(ctx, &criv1.GetEventsRequest{})
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("events of %s: %w", n.names[i], err)
		}
		end := make(chan struct{})
		ends = append(ends, end)
		go func() {
			defer close(end)
			for {
				event, err := stream.Recv()
				if err != nil {
					return
				}
				if of := event.GetPodSandboxStatus().GetMetadata(); of.GetName() != pod || of.GetNamespace() != namespace {
					continue
				}
				select {
				case all <- event:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return all, stop, nil
}
