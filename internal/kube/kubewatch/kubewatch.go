// SPDX-License-Identifier: Apache-2.0

// Package kubewatch follows single objects of a Kubernetes cluster by name: the Lease of the leading controller, and
// the DaemonSet of the daemons. It needs no rights but get, list and watch on these objects.
package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// lastRetry is the longest pause between two tries while the API server does not answer.
	lastRetry = time.Second
	// watchTimeout is the time after which the API server ends a watch.
	watchTimeout = 5 * time.Minute
	// listTimeout bounds a request.
	listTimeout = 10 * time.Second
)

// retries returns jittered pauses between attempts, so that clients do not keep step with each other.
func retries() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: lastRetry}
}

// RESTConfig returns the configuration to reach the API server: from the kubeconfig file at path or, if that is
// empty, that of a pod. A lost connection to the server is noticed within about ten seconds.
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

// source lists and watches objects of one kind; L is the type of its list.
type source[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow reports each state of an object, nil while it does not exist, until ctx ends. It reports nothing while the API
// server does not answer.
func follow[T any, L runtime.Object](
	ctx context.Context, log *slog.Logger, name string, src source[L], items func(L) []T, report func(*T),
) {
	repeat(ctx, log, name, func() error { return followOnce(ctx, name, src, items, report) })
}

// repeat calls once, which lists and watches the named object, repeatedly until ctx ends. It pauses between calls,
// and logs the first of several failures.
func repeat(ctx context.Context, log *slog.Logger, name string, once func() error) {
	backoff, silent := retries(), false
	for {
		begin := time.Now()
		err := once()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !silent {
			log.Warn("the API server does not answer; trying again", "object", name, "error", err)
		}
		if silent = err != nil; !silent && time.Since(begin) > lastRetry {
			backoff = retries() // the watch ended regularly
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff.Step()):
		}
	}
}

// byName returns options that select one object.
func byName(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}

// followOnce lists the object and watches it until the watch ends.
func followOnce[T any, L runtime.Object](
	ctx context.Context, name string, src source[L], items func(L) []T, report func(*T),
) error {
	opts := byName(name)
	request, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := src.List(request, opts)
	if err != nil {
		return err
	}
	if all := items(list); len(all) > 0 {
		report(&all[0])
	} else {
		report(nil)
	}
	meta, ok := any(list).(metav1.ListInterface)
	if !ok {
		return fmt.Errorf("a %T has no resource version", list)
	}
	seconds := int64(watchTimeout.Seconds())
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
					report(o)
				}
			case watch.Deleted:
				report(nil)
			case watch.Error:
				return errors.Join(errors.New("watching"), apierrors.FromObject(e.Object))
			}
		}
	}
}
