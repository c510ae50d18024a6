// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/test/testutil/e2e"
)

// writesOfWake are the requests with which the controller changes something for a wake and its hand-over, each once.
// Its status may be written once more, as the time of the first byte is known later than the end of the wake.
var writesOfWake = []string{
	"create pods by wangell", "patch wangellservices by wangell",
	"update deployments/scale by wangell", "create replicasets by wangell", "patch deployments by wangell",
}

// testWakeWrites counts what is written for wakes. WANGELL_TEST_STORM=100 wakes as many services,
// WANGELL_TEST_STORM_RATE (4) a second, and creates as many plain pods before at the same rate.
func testWakeWrites(t *testing.T) {
	n, rate := 3, 4.0
	if env := os.Getenv("WANGELL_TEST_STORM"); env != "" {
		n = e2e.Must(strconv.Atoi(env))(t)
	}
	if env := os.Getenv("WANGELL_TEST_STORM_RATE"); env != "" {
		rate = e2e.Must(strconv.ParseFloat(env, 64))(t)
	}
	key := func(i int) string { return fmt.Sprintf("default/woken-%03d", i) }
	var doc strings.Builder
	for i := range n {
		fmt.Fprintf(&doc, "%s---\n", manifest(key(i), "idleTimeout: 600\nwakeTimeout: 120"))
	}
	lab.apply(t, doc.String())
	addrs := make([]string, n)
	for i := range n {
		addrs[i] = lab.address(t, key(i))
		lab.waitCold(t, key(i))
		lab.waitDeployment(t, key(i), "paused=true wants=0 has= sets=0")
	}
	plain := auditFrom(t)
	took := storm(t, n, rate, func(i int) error { return plainPod(t.Context(), fmt.Sprintf("plain-%03d", i)) })
	t.Logf("plain pods: %s\n%s", quantiles(took), tally(plain.writes(t, "default", "plain-")))
	e2e.Must(lab.kubectl("", "delete", "pod", "-n", "default", "-l", "storm=plain", "--grace-period=1", "--wait"))(t)

	woken := auditFrom(t)
	took = storm(t, n, rate, func(i int) error { _, err := e2e.Ask(lab.client, addrs[i]); return err })
	t.Logf("wakes: %s\nuntil the last client was answered\n%s", quantiles(took),
		tally(woken.writes(t, "default", "woken-")))
	for i := range n {
		lab.waitDeployment(t, key(i), handedOver)
	}
	t.Logf("until the last pod was handed over\n%s", tally(woken.writes(t, "default", "woken-")))
	if n > 10 {
		return // then the API server may refuse some, which are repeated
	}
	for i := range n {
		e2e.Eventually(t, key(i)+": its state and number of pods", func() (bool, string) {
			s := lab.get(t, key(i))
			return s.Status.State == "Warm" && s.Spec.Replicas != nil && *s.Spec.Replicas == 1 &&
				s.Status.ObservedGeneration == s.Generation, fmt.Sprintf("%+v", s.Status)
		})
		_, name, _ := strings.Cut(key(i), "/")
		all := woken.writes(t, "default", name)
		got := map[string]int{}
		for _, w := range all {
			got[w.String()]++
		}
		for _, what := range writesOfWake {
			if got[what] != 1 {
				t.Errorf("%s: %d times %s, want 1", name, got[what], what)
			}
		}
		if n := got["patch wangellservices/status by wangell"]; n < 1 || n > 2 {
			t.Errorf("%s: its status was written %d times, want 1 or 2", name, n)
		}
	}
}

// storm calls f for 0 to n-1 at a rate, and returns how long the calls took, the fastest first.
func storm(t *testing.T, n int, rate float64, f func(int) error) []time.Duration {
	t.Helper()
	var all sync.WaitGroup
	took, errs := make([]time.Duration, n), make([]error, n)
	next := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer next.Stop()
	for i := range n {
		all.Go(func() {
			begin := time.Now()
			errs[i] = f(i)
			took[i] = time.Since(begin).Round(time.Millisecond)
		})
		<-next.C
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	slices.Sort(took)
	return took
}

// quantiles describes durations, the shortest first.
func quantiles(took []time.Duration) string {
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100] }
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v, longest %v", at(50), at(90), at(99), at(100))
}

// plainPod creates a pod and waits until it answers on its node.
func plainPod(ctx context.Context, name string) error {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.Labels = "default", name, map[string]string{"storm": "plain"}
	pod.Spec.Containers = []corev1.Container{{Name: "server", Image: serverImage,
		ImagePullPolicy: corev1.PullIfNotPresent}}
	if err := lab.api.Create(ctx, pod); err != nil {
		return err
	}
	for end := time.Now().Add(e2e.Patience); ; time.Sleep(100 * time.Millisecond) {
		if err := lab.api.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		n := lab.node(pod.Spec.NodeName)
		if n != nil && pod.Status.PodIP != "" {
			if _, err := e2e.Ask(n.ns, pod.Status.PodIP+":8080"); err == nil {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("pod %s does not answer: %+v", name, pod.Status)
		}
	}
}
