// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/kube/operator"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/kube"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/need"
)

// environment variables: the file that describes a cluster, and that this process is on one of its nodes' networks.
const (
	clusterVar = "WANGELL_CLUSTER"
	insideVar  = "WANGELL_CLUSTER_INSIDE"
)

func readCluster() (*clusterfile.Cluster, error) { return clusterfile.Load(os.Getenv(clusterVar)) }

// TestMain runs the tests on the network of a node, because only there pods are reached by their addresses.
func TestMain(m *testing.M) {
	if os.Getenv(clusterVar) == "" || os.Getenv(insideVar) != "" {
		os.Exit(m.Run())
	}
	c, err := readCluster()
	if err == nil {
		var nsenter string
		if nsenter, err = exec.LookPath("nsenter"); err == nil {
			args := append([]string{"nsenter", "--net=" + c.Nodes[0].NetnsPath, os.Args[0]}, os.Args[1:]...)
			err = syscall.Exec(nsenter, args, append(os.Environ(), insideVar+"=1"))
		}
	}
	fmt.Fprintf(os.Stderr, "$%s: %v\n", clusterVar, err)
	os.Exit(1)
}

// pushProbe brings the image of the tests to the cluster's registry, once.
var pushProbe = sync.OnceValue(func() error {
	c, err := readCluster()
	if err != nil {
		return err
	}
	img, err := runtimetest.Probe()
	if err != nil {
		return err
	}
	tag, err := name.NewTag(c.Registry.LAN+"/probe:v1", name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(tag, img)
})

// withDeployments is a Runtime for which there is a Deployment of every service that is started, as the operator would
// have made it.
type withDeployments struct {
	*kube.Runtime
	client kubernetes.Interface
}

// Start makes the Deployment, or brings it up to date, and starts a pod.
func (r withDeployments) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod,
	error) {
	spec := s.DeepCopy()
	v1alpha1.Default(spec)
	spec.Spec.ImagePullPolicy = corev1.PullIfNotPresent // nodes have to fetch the image once
	want := operator.DeploymentOf(spec, spec.Spec.Strategy(), false)
	want.OwnerReferences = nil
	deployments := r.client.AppsV1().Deployments(s.Namespace)
	is, err := deployments.Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = deployments.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil // by a Start at the same time
		}
	case err == nil &&
		is.Spec.Template.Labels[v1alpha1.LabelSpecHash] != want.Spec.Template.Labels[v1alpha1.LabelSpecHash]:
		is.Spec.Template = want.Spec.Template
		_, err = deployments.Update(ctx, is, metav1.UpdateOptions{})
	}
	if err != nil {
		return runtime.Pod{}, err
	}
	return r.Runtime.Start(ctx, s, hooks)
}

func TestKubernetesFulfilsTheRuntimeContract(t *testing.T) {
	need.Chosen(t, clusterVar, "the cluster.json of a cluster without Wangell: go run -C test/cluster . up --nodes 1")
	c, err := readCluster()
	if err != nil {
		t.Fatal(err)
	}
	if err := pushProbe(); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigLAN)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		t.Cleanup(func() { removeAll(t, client) })
		return runtimetest.Harness{
			Remote: true, Phases: []runtime.Phase{runtime.PhaseSandbox, runtime.PhaseStarted},
			Open: func(t *testing.T) runtime.Runtime {
				r, err := kube.Open(t.Context(), kube.Config{Client: client, Namespace: "default", WithoutDaemons: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { r.Close() })
				return withDeployments{r, client}
			},
		}
	})
}

// removeAll removes what a test made, and waits until it is gone.
func removeAll(t *testing.T, client kubernetes.Interface) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ours, now := metav1.ListOptions{LabelSelector: v1alpha1.LabelService}, int64(0)
	if err := client.AppsV1().Deployments("default").DeleteCollection(ctx, metav1.DeleteOptions{}, ours); err != nil {
		t.Error(err)
	}
	for {
		pods, err := client.CoreV1().Pods("default").List(ctx, ours)
		if err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) == 0 {
			return
		}
		for _, p := range pods.Items {
			_ = client.CoreV1().Pods("default").Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		time.Sleep(50 * time.Millisecond)
	}
}
