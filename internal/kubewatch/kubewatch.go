// SPDX-License-Identifier: Apache-2.0

// Package kubewatch follows single objects of a Kubernetes cluster by their name: the Lease of the controllers' leader, and
// the DaemonSet of the daemons. It asks for no more rights than get, list and watch on those objects.
package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second // an API server that comes back is asked so soon
	// watchFor is how long one watch lasts; the server ends it then.
	watchFor = 5 * time.Minute
	askFor   = 10 * time.Second // the most that a question without an answer is waited for
)

// RESTConfig returns how to reach the API server: by a kubeconfig file, or if path is empty as a pod does. A server
// that vanishes without a word is noticed in about ten seconds.
func RESTConfig(path string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	dialer := &net.Dialer{
		Timeout:         3 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3},
	}
	cfg.Dial = dialer.DialContext
	return cfg, nil
}

// source is where an object is listed and watched; L is the kind of its list.
type source[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow tells each state of an object, nil while there is none, until ctx ends. While the API server does not answer
// nothing is told.
func follow[T any, L runtime.Object](ctx context.Context, log *slog.Logger, name string, src source[L], items func(L) []T, tell func(*T)) {
	pause, silent := firstRetry, false
	for {
		begin := time.Now()
		err := followOnce(ctx, name, src, items, tell)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !silent {
			log.Warn("the API server does not answer; it is asked until it does", "object", name, "error", err)
		}
		if silent = err != nil; !silent && time.Since(begin) > lastRetry {
			pause = firstRetry // the watch's time was over
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, lastRetry)
	}
}

func followOnce[T any, L runtime.Object](ctx context.Context, name string, src source[L], items func(L) []T, tell func(*T)) error {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	ask, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	list, err := src.List(ask, opts)
	if err != nil {
		return err
	}
	if all := items(list); len(all) > 0 {
		tell(&all[0])
	} else {
		tell(nil)
	}
	meta, ok := any(list).(metav1.ListInterface)
	if !ok {
		return fmt.Errorf("a %T has no version", list)
	}
	seconds := int64(watchFor.Seconds())
	opts.ResourceVersion, opts.TimeoutSeconds = meta.GetResourceVersion(), &seconds
	w, err := src.Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-w.ResultChan():
			if !open {
				return nil
			}
			switch e.Type {
			case watch.Added, watch.Modified:
				if o, ok := any(e.Object).(*T); ok {
					tell(o)
				}
			case watch.Deleted:
				tell(nil)
			case watch.Error:
				return errors.Join(errors.New("watching"), apierrors.FromObject(e.Object))
			}
		}
	}
}
