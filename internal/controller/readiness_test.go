// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/readiness"
	"wangell.loutres.me/internal/wire"
)

func probed(s *v1alpha1.WangellServiceSpec) {
	s.ReadyWhen = v1alpha1.ReadyWhenProbed
	s.ReadinessProbe = &corev1.Probe{FailureThreshold: 2, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)},
	}}
}

func TestStartupProbeThatFailsEndsThePod(t *testing.T) {
	w := newWorld(t, nil)
	w.d.set(func(d *fakeDaemon) { d.mute = true })
	w.apply(newService("a", probed, func(s *v1alpha1.WangellServiceSpec) {
		s.StartupProbe = &corev1.Probe{FailureThreshold: 30, ProbeHandler: s.ReadinessProbe.ProbeHandler}
	}))
	a := w.vip("a")
	w.d.syn(a)
	w.until("its pod starts", func() bool { return w.d.pods(a) == " starting" })
	b := w.d.backend(a, 0)
	spec, err := readiness.Decode(b.Probe)
	if err != nil || spec.Startup.FailureThreshold != 30 || spec.Startup.PeriodSeconds != 10 {
		t.Fatalf("probes %s (%v)", b.Probe, err)
	}
	w.d.send(&wire.Unready{Service: a, PodID: b.PodID, At: monotime.Now(), Answer: "startupProbe: httpGet: status 503"})
	w.until("status tells it", func() bool {
		return w.status("a").Service.Status.Message == "pod a-1 is not ready: startupProbe: httpGet: status 503"
	})
	w.d.send(&wire.Unready{Service: a, PodID: b.PodID, Answer: "startupProbe: httpGet: status 503", Failed: true})
	w.until("the wake has failed", func() bool { return w.state("a") == "Failed" && w.d.pods(a) == "" })
	if m := w.status("a").Service.Status.Message; m != "the pod did not start in time: startupProbe: httpGet: status 503" {
		t.Errorf("message %q", m)
	}
}

func TestHomeNodeGetsTheProbeAndItsAnswersAreTold(t *testing.T) {
	w := newWorld(t, nil)
	w.d.set(func(d *fakeDaemon) { d.mute = true })
	w.apply(newService("a", probed))
	a := w.vip("a")
	w.d.syn(a)
	w.until("its pod starts", func() bool { return w.d.pods(a) == " starting" })
	b := w.d.backend(a, 0)
	spec, err := readiness.Decode(b.Probe)
	if err != nil || spec.Container != "a" || spec.Probe.HTTPGet.Path != "/ready" || spec.Probe.PeriodSeconds != 10 ||
		spec.Probe.FailureThreshold != 2 || spec.Probe.HTTPGet.Scheme != corev1.URISchemeHTTP || b.Runtime != "a-1" {
		t.Fatalf("probe %s (%v) of pod %s", b.Probe, err, b.Runtime)
	}
	other := w.daemonOn("n2")
	defer other.client.Close()
	w.until("n2 has the pod", func() bool { return other.pods(a) == " starting" })
	if o := other.backend(a, 0); o.Probe != "" || o.Runtime != "" {
		t.Errorf("another node got the probe: %+v", o)
	}
	tells := func(want string) {
		t.Helper()
		w.until("status tells "+want, func() bool { return strings.Contains(w.status("a").Service.Status.Message, want) })
	}
	unready := func(answer string) {
		w.d.send(&wire.Unready{Service: a, PodID: b.PodID, At: monotime.Now(), Answer: answer})
	}
	unready("")
	tells("pod a-1 is not ready: it has not answered yet")
	unready("httpGet: status 503")
	tells("pod a-1 is not ready: httpGet: status 503")
	if s := w.state("a"); s != "Waking" {
		t.Errorf("state %s while its probe fails", s)
	}
	listens := func() { w.d.send(&wire.Listening{Service: a, PodID: b.PodID, At: monotime.Now()}) }
	listens()
	w.until("it serves", func() bool { return w.d.pods(a) == " serving" && other.pods(a) == " serving" })
	if m := w.status("a").Service.Status.Message; m != "" {
		t.Errorf("a message while it serves: %s", m)
	}
	unready("httpGet: status 500")
	tells("pod a-1 is not ready: httpGet: status 500")
	w.until("no node gives it flows", func() bool { return w.d.pods(a) == " starting" && other.pods(a) == " starting" })
	listens()
	w.until("it serves again", func() bool { return w.d.pods(a) == " serving" && other.pods(a) == " serving" })
}
