// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/test/testutil/e2e"
)

// metricsModule is the Go module of metrics-server. test/cluster builds the program.
const metricsModule = "sigs.k8s.io/metrics-server"

// metricsServer runs metrics-server until the end of the test, from the manifests of its module.
func metricsServer(t *testing.T) {
	t.Helper()
	download := exec.Command("go", "mod", "download", "-json", metricsModule)
	download.Dir = filepath.Join(root, "test/cluster/modules/metrics-server")
	download.Env = append(os.Environ(), "GOWORK=off") // a module of its own
	out := e2e.Must(download.Output())(t)
	var module struct{ Version, Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatalf("go mod download %s: %v in %q", metricsModule, err, out)
	}
	if err := pushProgram(filepath.Join(lab.Bin, "metrics-server"), "metrics-server:"+module.Version); err != nil {
		t.Fatal(err)
	}
	// Kustomize needs a relative path.
	dir := e2e.Must(os.MkdirTemp(folder, "metrics-server-"))(t)
	base := e2e.Must(filepath.Rel(dir, filepath.Join(module.Dir, "manifests/base")))(t)
	kustomization := fmt.Sprintf(`resources: [%s]
images: [{name: gcr.io/k8s-staging-metrics-server/metrics-server, newName: %s, newTag: %s}]
patches:
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: metrics-server, namespace: kube-system}
    spec:
      template:
        spec:
          containers:
          - name: metrics-server
            args:
            - --cert-dir=/tmp
            - --secure-port=10250
            - --kubelet-preferred-address-types=InternalIP
            - --kubelet-use-node-status-port
            - --kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt
            - --metric-resolution=10s
            - --kubelet-request-timeout=5s
            readinessProbe: {initialDelaySeconds: 0, periodSeconds: 1}
`, base, lab.Registry.Address+"/metrics-server", module.Version)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		t.Fatal(err)
	}
	lab.apply(t, e2e.Must(lab.kubectl("", "kustomize", dir))(t))
	e2e.Must(lab.kubectl("", "wait", "apiservice", "v1beta1.metrics.k8s.io", "--for=condition=Available",
		"--timeout="+e2e.Patience.String()))(t)
}

// scaling reports whether an autoscaler is active, and the reason.
func scaling(h *autoscalingv2.HorizontalPodAutoscaler) (is bool, reason string) {
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			return c.Status == corev1.ConditionTrue, c.Reason
		}
	}
	return false, ""
}

// autoscaler returns a HorizontalPodAutoscaler.
func (c *cluster) autoscaler(t *testing.T, key string) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	h := new(autoscalingv2.HorizontalPodAutoscaler)
	if err := c.read(key, h); err != nil {
		t.Fatal(err)
	}
	return h
}

// rescales returns how often an autoscaler has changed the number of pods.
func (c *cluster) rescales(t *testing.T, key string) (n int) {
	t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	out := e2e.Must(c.kubectl("", "get", "events", "-n", namespace, "-o", "jsonpath={.items[*].count}",
		"--field-selector",
		"involvedObject.kind=HorizontalPodAutoscaler,reason=SuccessfulRescale,involvedObject.name="+name))(t)
	for _, count := range strings.Fields(out) {
		var times int
		if _, err := fmt.Sscan(count, &times); err != nil {
			t.Fatalf("events of %s: count %q: %v", key, count, err)
		}
		n += times
	}
	return n
}

// testAutoscaler has a HorizontalPodAutoscaler scale by CPU, with metrics-server. It is inactive while the service
// sleeps, becomes active when a client wakes the service, and the two do not fight over spec.replicas.
func testAutoscaler(t *testing.T) {
	metricsServer(t)
	const key = "default/autoscaled"
	lab.apply(t, manifest(key, "idleTimeout: 20\nmaxReplicas: 3\nenv: [{name: STOP, value: close}]\n"+
		"resources: {requests: {cpu: 100m}}")+`---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: autoscaled, namespace: default}
spec:
  scaleTargetRef: {apiVersion: wangell.loutres.me/v1alpha1, kind: WangellService, name: autoscaled}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 10}}
  metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}
`)
	rests := func() {
		t.Helper()
		e2e.Eventually(t, "the autoscaler is inactive", func() (bool, string) {
			h := lab.autoscaler(t, key)
			is, reason := scaling(h)
			return !is && reason == "ScalingDisabled" && h.Status.CurrentReplicas == 0, fmt.Sprintf("%+v", h.Status)
		})
	}
	addr := lab.address(t, key)
	rests()
	generation := lab.get(t, key).Generation

	e2e.MustAsk(t, lab.client, addr)
	loaded := make(chan e2e.Result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { loaded <- wrkUntil(ctx, lab.client, addr, 2*e2e.Patience) }()
	lab.replicas(t, key, 3)
	// Keeps the service awake until the autoscaler has removed two pods, with too little work for a second one.
	tr := e2e.StartLoad(t, addr, e2e.Client{From: lab.client, Pause: 100 * time.Millisecond})
	cancel()
	if l := <-loaded; l.Lost > 0 || l.Requests == 0 {
		t.Errorf("%d of %d requests are lost:\n%s", l.Lost, l.Requests, l.Output)
	}
	lab.replicas(t, key, 1)
	e2e.Eventually(t, "the autoscaler sees one pod", func() (bool, string) {
		h := lab.autoscaler(t, key)
		is, _ := scaling(h)
		return is && h.Status.CurrentReplicas == 1, fmt.Sprintf("%+v", h.Status)
	})
	tr.Stop(t)

	lab.waitCold(t, key)
	rests()
	// Each change of the spec is a generation: those of the autoscaler, one by the wake, and one by the sleep.
	if s, n := lab.get(t, key), lab.rescales(t, key); *s.Spec.Replicas != 0 || s.Status.State != "Cold" ||
		s.Generation != generation+int64(n)+2 {
		t.Errorf("replicas %d, %s; spec.replicas was written %d times, %d times by the autoscaler", *s.Spec.Replicas,
			s.Status.State, s.Generation-generation, n)
	}
	e2e.MustAsk(t, lab.client, addr)
}
