// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/test/testutil/clusterfile"
)

// Runtimes are the container runtimes of the cluster's nodes.
type Runtimes struct {
	names []string
	conns []*grpc.ClientConn
}

func dialRuntimes(nodes []clusterfile.Node) (*Runtimes, error) {
	r := &Runtimes{}
	for _, n := range nodes {
		conn, err := grpc.NewClient("unix://"+n.ContainerdSocket,
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("the runtime of %s: %w", n.Name, err), r.close())
		}
		r.names, r.conns = append(r.names, n.Name), append(r.conns, conn)
	}
	return r, nil
}

func (r *Runtimes) close() error {
	var errs []error
	for _, c := range r.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Pull pulls an image on every node, so that no request has to wait for it.
func (r *Runtimes) Pull(ctx context.Context, reference string) error {
	for i, c := range r.conns {
		request := &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: reference}}
		if _, err := criv1.NewImageServiceClient(c).PullImage(ctx, request); err != nil {
			return fmt.Errorf("pull %s on %s: %w", reference, r.names[i], err)
		}
	}
	return nil
}

// kill ends the containers of a pod at once. A pod without containers is not an error.
func (r *Runtimes) kill(ctx context.Context, uid string) error {
	filter := &criv1.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid}}
	for i, c := range r.conns {
		client := criv1.NewRuntimeServiceClient(c)
		list, err := client.ListContainers(ctx, &criv1.ListContainersRequest{Filter: filter})
		if err != nil {
			return fmt.Errorf("containers of %s: %w", r.names[i], err)
		}
		for _, container := range list.Containers {
			_, err := client.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: container.Id})
			if err != nil && status.Code(err) != codes.NotFound {
				return fmt.Errorf("end container %s on %s: %w", container.GetMetadata().GetName(), r.names[i], err)
			}
		}
	}
	return nil
}

// eventBuffer is the buffer of Watch, for more events than a pod has.
const eventBuffer = 64

// Watch follows the events of one pod on all nodes. The caller must call stop; it returns once no more event is sent.
func (r *Runtimes) Watch(
	ctx context.Context, namespace, pod string,
) (events <-chan *criv1.ContainerEventResponse, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	all := make(chan *criv1.ContainerEventResponse, eventBuffer)
	var ends []chan struct{}
	stop = func() {
		cancel()
		for _, end := range ends {
			<-end
		}
	}
	for i, c := range r.conns {
		stream, err := criv1.NewRuntimeServiceClient(c).GetContainerEvents(ctx, &criv1.GetEventsRequest{})
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("events of %s: %w", r.names[i], err)
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
