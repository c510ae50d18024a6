// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/internal/node/envoy"
)

func TestEnvoyIsOffByDefault(t *testing.T) {
	r := render(t)
	if r.envoy.Name != "" || strings.Contains(r.text, "--envoy-socket") || !strings.Contains(r.text, "--requests=false") {
		t.Errorf("a chart without requests.enabled has Envoy: %v", r.kinds)
	}
	if strings.Contains(r.text, "--envoy-service") {
		t.Error("without Envoy, the controller and the daemons have a Service of Envoys")
	}
}

// The controller tells nodes without Envoy by the Service that the daemons follow.
func TestControllerKnowsTheServiceOfTheEnvoys(t *testing.T) {
	r := render(t, "--set", "requests.enabled=true")
	args := r.controller.Spec.Template.Spec.Containers[0].Args
	if flag := "--envoy-service=" + namespace + "/" + r.envoy.Name; !slices.Contains(args, flag) {
		t.Errorf("%s is not among %v", flag, args)
	}
}

// The chart's own bootstrap says what internal/node/envoy says, as Envoy understands it.
func TestEnvoyGetsTheBootstrapOfTheProgram(t *testing.T) {
	c := render(t, "--set", "requests.enabled=true,requests.heap=100,requests.connections=1000").envoy.
		Spec.Template.Spec.Containers[0]
	i := slices.Index(c.Args, "--config-yaml")
	if i < 0 || len(c.Args) == i+1 {
		t.Fatalf("arguments %q", c.Args)
	}
	text := strings.NewReplacer("$(POD_IP)", "192.0.2.9", "$(POD_UID)", "uid").Replace(c.Args[i+1])
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got, want bootstrap.Bootstrap
	if err := protojson.Unmarshal(data, &got); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	data, err = envoy.Bootstrap(envoy.BootstrapConfig{
		Proxy:  envoy.Proxy{Addr: netip.MustParseAddr("192.0.2.9"), Pod: "uid"},
		Socket: "/run/wangell/xds.sock", MaxHeap: 100 << 20, MaxConnections: 1000, HealthPort: 9902,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, &want) {
		t.Errorf("the chart has\n%s\nthe program\n%s", protojson.Format(&got), protojson.Format(&want))
	}
}

// Envoy has no rights but to connect to the daemon of its node, whose socket is at the other end of the mount.
func TestEnvoyHasNoRights(t *testing.T) {
	r := render(t, everything...)
	spec := r.envoy.Spec.Template.Spec
	c := spec.Containers[0]
	s := c.SecurityContext
	if *spec.AutomountServiceAccountToken || spec.ServiceAccountName != "" || spec.HostNetwork || spec.HostPID ||
		spec.HostIPC || len(spec.Containers) != 1 {
		t.Errorf("%+v", spec)
	}
	if !*s.RunAsNonRoot || *s.RunAsUser == 0 || *s.Privileged || *s.AllowPrivilegeEscalation ||
		!*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		len(s.Capabilities.Add) != 0 ||
		s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v", s)
	}
	if len(spec.Volumes) != 1 || !c.VolumeMounts[0].ReadOnly || c.VolumeMounts[0].MountPath != "/run/wangell" {
		t.Fatalf("%+v, %+v", spec.Volumes, c.VolumeMounts)
	}
	socket := "--envoy-socket=" + spec.Volumes[0].HostPath.Path + "/xds.sock"
	if !slices.Contains(r.daemon.Spec.Template.Spec.Containers[0].Args, socket) {
		t.Errorf("the daemon does not have %s", socket)
	}
	for _, p := range r.policies {
		if p.Labels[component] == "envoy" && (len(p.Spec.Ingress) != 0 || len(p.Spec.PolicyTypes) != 1) {
			t.Errorf("others than the gate's clients may connect: %+v", p.Spec)
		}
	}
}

// The new Envoy of a node is beside the old one until its clients have left.
func TestEnvoyIsReplacedByAnotherOneBesideIt(t *testing.T) {
	d := render(t, "--set", "requests.enabled=true,requests.drainSeconds=30").envoy
	u := d.Spec.UpdateStrategy.RollingUpdate
	if u.MaxSurge.String() != "1" || u.MaxUnavailable.String() != "0" {
		t.Errorf("update %+v", u)
	}
	spec := d.Spec.Template.Spec
	c := spec.Containers[0]
	i := slices.Index(c.Args, "--drain-time-s")
	if i < 0 || c.Args[i+1] != "30" {
		t.Fatalf("arguments %q", c.Args)
	}
	if sleep := c.Lifecycle.PreStop.Sleep.Seconds; sleep <= 30 || *spec.TerminationGracePeriodSeconds <= sleep {
		t.Errorf("drains for 30 s, waits for %d s, is killed after %d s", sleep, *spec.TerminationGracePeriodSeconds)
	}
}

func TestEnvoyRunsWhereTheDaemonDoes(t *testing.T) {
	r := render(t, everything...)
	of, as := r.envoy.Spec.Template.Spec, r.daemon.Spec.Template.Spec
	if len(of.Tolerations) != len(as.Tolerations) || of.Affinity.String() != as.Affinity.String() ||
		of.NodeSelector["kubernetes.io/os"] != as.NodeSelector["kubernetes.io/os"] {
		t.Errorf("%+v, %+v", of, as)
	}
}
