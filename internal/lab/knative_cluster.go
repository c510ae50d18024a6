// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/testutil/netlab"
)

// clusterFile is what a cluster.json of test/cluster says, as far as it is used here.
type clusterFile struct {
	Kubeconfig string `json:"kubeconfig"`
	Registry   struct {
		Address     string `json:"address"`
		PushAddress string `json:"pushAddress"`
	} `json:"registry"`
	Client struct {
		NetnsPath string `json:"netnsPath"`
		Interface string `json:"interface"`
	} `json:"client"`
	Nodes []struct {
		Name             string `json:"name"`
		IP               string `json:"ip"`
		PodCIDR          string `json:"podCIDR"`
		ContainerdSocket string `json:"containerdSocket"`
	} `json:"nodes"`
	CNI       string            `json:"cni"`
	ProxyMode string            `json:"proxyMode"`
	Versions  map[string]string `json:"versions"`
}

// labCluster is a cluster with a namespace for the experiment.
type labCluster struct {
	file      clusterFile
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	client    *netlab.Namespace
	nodes     *nodeRuntimes
	namespace string
	// routes are those that the client got.
	routes []*netlink.Route
	// hurried are terminating pods whose containers were killed.
	hurried map[types.UID]bool
}

// openCluster connects to a cluster and makes the namespace.
func openCluster(ctx context.Context, file string) (_ *labCluster, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c := &labCluster{hurried: map[types.UID]bool{}}
	if err := json.Unmarshal(data, &c.file); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", file, err)
	}
	if c.file.Kubeconfig == "" || c.file.Registry.PushAddress == "" || c.file.Client.NetnsPath == "" || len(c.file.Nodes) == 0 {
		return nil, fmt.Errorf("cluster %s: not all of kubeconfig, registry.pushAddress, client.netnsPath and nodes are there", file)
	}
	if c.client, err = netlab.Existing(c.file.Client.NetnsPath); err != nil {
		return nil, fmt.Errorf("cluster %s: is it up? %w", file, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.file.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", file, err)
	}
	config.QPS = -1 // no limit of the client's own
	config.WarningHandler = rest.NoWarnings{}
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", file, err)
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", file, err)
	}
	if c.nodes, err = dialNodes(c.file); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.unroute(), c.nodes.close())
		}
	}()
	if err := c.route(); err != nil {
		return nil, err
	}
	ns, err := c.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "wangell-lab-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make a namespace: %w", err)
	}
	c.namespace = ns.Name
	return c, nil
}

// close removes all that the experiment made, and waits until it is gone.
func (c *labCluster) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), zeroTimeout)
	defer cancel()
	return errors.Join(c.removeAll(ctx), c.unroute(), c.nodes.close())
}

func (c *labCluster) removeAll(ctx context.Context) error {
	// Services and pods go before the namespace: its controller would wait for half of the pods' grace period, minutes.
	for _, r := range []schema.GroupVersionResource{knativeResource, wangellResource, corev1.SchemeGroupVersion.WithResource("pods")} {
		err := c.dynamic.Resource(r).Namespace(c.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) { // not found: the cluster does not know the kind
			return fmt.Errorf("remove %s: %w", r.Resource, err)
		}
	}
	if err := c.untilZero(ctx); err != nil {
		return err
	}
	if err := c.kube.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("remove namespace %s: %w", c.namespace, err)
	}
	return until(ctx, zeroTimeout, func() error {
		_, err := c.kube.CoreV1().Namespaces().Get(ctx, c.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("namespace %s is still there", c.namespace), err)
	})
}

// route gives the client routes to the pods, which a host outside of a cluster has not by itself: the floor is a pod that
// is asked without anything between.
func (c *labCluster) route() error {
	return c.client.Do(func() error {
		link, err := netlink.LinkByName(c.file.Client.Interface)
		if err != nil {
			return fmt.Errorf("the client's device %s: %w", c.file.Client.Interface, err)
		}
		for _, n := range c.file.Nodes {
			pods, err := netlink.ParseIPNet(n.PodCIDR)
			if err != nil {
				return fmt.Errorf("the pod addresses of %s: %w", n.Name, err)
			}
			r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: pods, Gw: net.ParseIP(n.IP)}
			if err := netlink.RouteAdd(r); errors.Is(err, unix.EEXIST) {
				continue
			} else if err != nil {
				return fmt.Errorf("give the client a route to the pods of %s: %w", n.Name, err)
			}
			c.routes = append(c.routes, r)
		}
		return nil
	})
}

// unroute takes back what route gave.
func (c *labCluster) unroute() error {
	if len(c.routes) == 0 {
		return nil
	}
	return c.client.Do(func() error {
		var errs []error
		for _, r := range c.routes {
			if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("take back the client's route to %s: %w", r.Dst, err))
			}
		}
		c.routes = nil
		return errors.Join(errs...)
	})
}

// pushHello puts the hello image into the cluster's registry and onto every node. It returns its reference, by digest:
// nobody has to look up what a tag means.
func (c *labCluster) pushHello(ctx context.Context) (string, error) {
	img, err := image.Hello(ctx)
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("push the hello image: %w", err)
	}
	const repository = "wangell-lab/hello"
	to, err := name.NewTag(c.file.Registry.PushAddress+"/"+repository+":v1", name.Insecure)
	if err != nil {
		return "", fmt.Errorf("push the hello image: %w", err)
	}
	if err := remote.Write(to, img, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("push the hello image to %s: %w", to, err)
	}
	reference := c.file.Registry.Address + "/" + repository + "@" + digest.String()
	return reference, c.nodes.pull(ctx, reference)
}

// request does one request from the cluster's client, a host outside of the cluster.
func (c *labCluster) request(ctx context.Context, address, host string) (Timing, error) {
	return request(ctx, c.client.Dialer().DialContext, address, host)
}

// pods returns all pods of the experiment, those that are ending too.
func (c *labCluster) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := c.kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

// untilZero waits until there has been no pod for a while.
func (c *labCluster) untilZero(ctx context.Context) error {
	var since time.Time
	return until(ctx, zeroTimeout, func() error {
		pods, err := c.pods(ctx)
		if err != nil {
			return err
		}
		if len(pods) > 0 {
			since = time.Time{}
			return errors.Join(fmt.Errorf("pod %s is still there", pods[0].Name), c.hurry(ctx, pods))
		}
		if since.IsZero() {
			since = time.Now()
		}
		if quiet := time.Since(since); quiet < knativeQuiet {
			return fmt.Errorf("no pod has been there for %v only", quiet)
		}
		return nil
	})
}

// hurry kills the containers of pods that are ending already: Knative's would go on for 30 s, though they serve nobody.
func (c *labCluster) hurry(ctx context.Context, pods []corev1.Pod) error {
	for _, p := range pods {
		if p.DeletionTimestamp == nil || c.hurried[p.UID] {
			continue
		}
		if err := c.nodes.kill(ctx, string(p.UID)); err != nil {
			return fmt.Errorf("end pod %s: %w", p.Name, err)
		}
		c.hurried[p.UID] = true
	}
	return nil
}

// versions names what ran.
func (c *labCluster) versions(ctx context.Context, sides []string) (map[string]string, error) {
	v := MachineVersions()
	maps.Copy(v, c.file.Versions)
	server, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the cluster's version: %w", err)
	}
	v["kubernetes"] = server.GitVersion
	if !slices.Contains(sides, SideKnative) && !slices.Contains(sides, SideKnativeNoToken) {
		return v, nil
	}
	for _, namespace := range []string{knativeNamespace, kourierNamespace} {
		list, err := c.kube.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("the versions of Knative: %w", err)
		}
		for _, d := range list.Items {
			v["knative "+d.Name] = imageVersion(d.Spec.Template.Spec.Containers[0].Image)
		}
	}
	return v, nil
}

// params are settings of the cluster that can change the outcome.
func (c *labCluster) params(ctx context.Context, sides []string) (map[string]any, error) {
	p := map[string]any{"nodes": len(c.file.Nodes), "CNI": c.file.CNI, "kube-proxy mode": c.file.ProxyMode}
	if !slices.Contains(sides, SideKnative) && !slices.Contains(sides, SideKnativeNoToken) {
		return p, nil
	}
	config, err := c.kube.CoreV1().ConfigMaps(knativeNamespace).Get(ctx, "config-autoscaler", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("settings of Knative: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(config.Data)) {
		if key != "_example" {
			p["knative config-autoscaler: "+key] = config.Data[key]
		}
	}
	p["knative: "+windowAnnotation] = windowValue
	return p, nil
}

// imageVersion returns the tag of an image reference; without one, all of it.
func imageVersion(reference string) string {
	untagged, _, _ := strings.Cut(reference, "@")
	if i := strings.LastIndexByte(untagged, ':'); i > strings.LastIndexByte(untagged, '/') {
		return untagged[i+1:]
	}
	return reference
}

// until calls f again and again until it returns nil. The last error is told when time is up.
func until(ctx context.Context, timeout time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return fmt.Errorf("waited for %v: %w", timeout, err)
		}
	}
}
