// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"wangell.loutres.me/internal/kube/clusterapi"
)

// The snapshotters of lazy pulls are checked if the chart has them: they need nodes with the label, and run there.
func TestSnapshottersAreCheckedWhereThereAreSome(t *testing.T) {
	of := clusterapi.Controller{Namespace: "wangell-system", Name: "wangell"}
	without := doctor{api: fake.NewClientset(), of: of}
	if got := without.lazy(t.Context()); got != nil {
		t.Errorf("without snapshotters: %+v", got)
	}
	for _, c := range []struct {
		ready, wanted int32
		state         State
		do            string
	}{
		{0, 0, Warn, "label them"}, {1, 2, Failed, "wangell doctor"}, {2, 2, OK, ""},
	} {
		d := doctor{of: of, api: fake.NewClientset(&appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "wangell-lazy"},
			Status:     appsv1.DaemonSetStatus{NumberReady: c.ready, DesiredNumberScheduled: c.wanted},
		})}
		got := d.lazy(t.Context())
		if len(got) != 1 || got[0].State != c.state || !strings.Contains(got[0].Do, c.do) {
			t.Errorf("%d of %d: %+v", c.ready, c.wanted, got)
		}
	}
}

// A Lease that is renewed has a leader, whatever the clock of the user's machine says.
func TestLeaderIsToldFromAWrongClock(t *testing.T) {
	of := clusterapi.Controller{Namespace: "wangell-system", Name: "wangell"}
	renewed := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		clock   time.Duration // of the user's machine, by that of the leader
		renews  bool
		state   State
		message string
	}{
		"leads":                          {time.Second, true, OK, "c-1"},
		"leads, and the clock is ahead":  {time.Hour, true, Warn, "differs from its clock by 1h0m0s"},
		"leads, and the clock is behind": {-time.Minute, true, Warn, "differs from its clock by 1m0s"},
		"has ended":                      {time.Hour, false, Failed, "has not renewed its Lease since"},
		"has ended, the clock is behind": {-time.Minute, false, Failed, "has not renewed its Lease since"},
	} {
		holder, at := "c-1", metav1.NewMicroTime(renewed)
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at},
		}
		d := doctor{of: of, api: fake.NewClientset(lease), now: func() time.Time { return renewed.Add(c.clock) }}
		d.after = func(time.Duration) <-chan time.Time {
			if c.renews {
				at := metav1.NewMicroTime(renewed.Add(leaseLook))
				lease.Spec.RenewTime = &at
				if _, err := d.api.CoordinationV1().Leases(of.Namespace).Update(t.Context(), lease,
					metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			return time.After(0)
		}
		if got := d.leader(t.Context()); got.State != c.state || !strings.Contains(got.Found, c.message) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What keeps a pod of a DaemonSet from being ready is told with the numbers.
func TestPodsThatAreNotReadySayWhy(t *testing.T) {
	of := clusterapi.Controller{Namespace: "wangell-system", Name: "wangell"}
	labels := map[string]string{"app": "envoy"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "wangell-envoy"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
		Status:     appsv1.DaemonSetStatus{NumberReady: 1, DesiredNumberScheduled: 2},
	}
	pod := func(name string, status corev1.PodStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: name, Labels: labels},
			Spec:       corev1.PodSpec{NodeName: "n1"}, Status: status,
		}
	}
	container := func(s corev1.ContainerStatus) corev1.PodStatus {
		s.Name = "envoy"
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{s}}
	}
	waits := func(reason, message string) corev1.PodStatus {
		return container(corev1.ContainerStatus{State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}})
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for want, status := range map[string]corev1.PodStatus{
		"; b on n1: ImagePullBackOff: manifest unknown": waits("ImagePullBackOff", "manifest unknown"),
		"1 of 2 Envoys are ready":                       waits("ContainerCreating", ""),
		"ended with exit code 137, and runs again": container(corev1.ContainerStatus{State: running,
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}}),
		"Insufficient memory": {Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes: Insufficient memory",
		}}},
		"Evicted: the node was low on memory": {Reason: "Evicted", Message: "the node was low on memory"},
	} {
		ready := container(corev1.ContainerStatus{State: running, Ready: true})
		d := doctor{of: of, api: fake.NewClientset(set, pod("a", ready), pod("b", status))}
		got := d.envoys(t.Context())
		if len(got) != 1 || got[0].State != Failed || !strings.HasSuffix(got[0].Found, want) {
			t.Errorf("%+v: want %q", got, want)
		}
	}
}

// A NetworkPolicy is worth what enforces it.
func TestNetworkPoliciesAreCheckedWithWhatEnforcesThem(t *testing.T) {
	of := clusterapi.Controller{Namespace: "wangell-system", Name: "wangell"}
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "wangell-controller"},
	}
	nodes := func(from ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "wangell-controller-nodes"},
			Spec:       networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from}}},
		}
	}
	block := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.1/32"}}
	daemons := func(name string) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
	}
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		state   State
		found   string
	}{
		{"no policy", []runtime.Object{daemons("calico-node")}, Warn, "the controller has none"},
		{"Calico", []runtime.Object{policy, daemons("calico-node"), daemons("kube-proxy")}, OK, "enforced by Calico"},
		{"a list of nodes", []runtime.Object{policy, nodes(block), daemons("calico-node")}, OK, "enforced by Calico"},
		{"no list of nodes", []runtime.Object{policy, nodes(), daemons("calico-node")}, Warn, "each pod of the cluster"},
		{"Flannel", []runtime.Object{policy, daemons("kube-flannel-ds")}, Warn, "Flannel does not enforce them"},
		{"Flannel beside Calico", []runtime.Object{policy, daemons("kube-flannel-ds"), daemons("calico-node")}, OK, "Calico"},
		{"unknown", []runtime.Object{policy, daemons("my-network")}, Warn, "cannot be told"},
	} {
		d := doctor{of: of, api: fake.NewClientset(c.objects...)}
		if got := d.policies(t.Context()); got.State != c.state || !strings.Contains(got.Found, c.found) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if by, _ := enforcement("v1.34.2+k3s1", nil); by != "k3s" {
		t.Errorf("k3s: %q", by)
	}
}

// The Envoys that balance requests are checked likewise.
func TestEnvoysAreCheckedWhereThereAreSome(t *testing.T) {
	of := clusterapi.Controller{Namespace: "wangell-system", Name: "wangell"}
	without := doctor{api: fake.NewClientset(), of: of}
	if got := without.envoys(t.Context()); got != nil {
		t.Errorf("without Envoys: %+v", got)
	}
	for ready, state := range map[int32]State{0: Failed, 1: Failed, 2: OK} {
		d := doctor{of: of, api: fake.NewClientset(&appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "wangell-envoy"},
			Status:     appsv1.DaemonSetStatus{NumberReady: ready, DesiredNumberScheduled: 2},
		})}
		if got := d.envoys(t.Context()); len(got) != 1 || got[0].State != state {
			t.Errorf("%d of 2: %+v", ready, got)
		}
	}
}
