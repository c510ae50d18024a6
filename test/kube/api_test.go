// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/e2e"
)

// newAPI returns a client of the API server. Tests that wait look every 50 ms: a kubectl for each look would keep both
// cores of a small machine busy.
func newAPI(kubeconfig string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kubeconfig, err)
	}
	config.QPS = -1 // no limit
	log.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// call calls the API server. It tries again while the API server, which is not under test, is away or overloaded.
func (c *cluster) call(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Patience)
	defer cancel()
	for {
		err := f(ctx)
		var answer apierrors.APIStatus
		away := err != nil && !errors.As(err, &answer) || apierrors.IsServiceUnavailable(err) ||
			apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsInternalError(err)
		if !away || ctx.Err() != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// read reads an object with a key NAMESPACE/NAME.
func (c *cluster) read(key string, into client.Object) error {
	err := c.call(func(ctx context.Context) error { return c.api.Get(ctx, nameOf(key), into) })
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	return nil
}

// list lists the objects that belong to a service.
func (c *cluster) list(key string, into client.ObjectList) error {
	of := nameOf(key)
	err := c.call(func(ctx context.Context) error {
		return c.api.List(ctx, into, client.InNamespace(of.Namespace),
			client.MatchingLabels{"wangell.loutres.me/service": of.Name})
	})
	if err != nil {
		return fmt.Errorf("list objects of %s: %w", key, err)
	}
	return nil
}

// nameOf returns the name of an object with a key NAMESPACE/NAME.
func nameOf(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(key, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
