// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
)

func TestSignalsHaveNamesAndNumbers(t *testing.T) {
	for text, want := range map[string]int32{
		"SIGTERM": 15, "TERM": 15, "15": 15, "SIGHUP": 1, "SYS": 31, "IOT": 6, "SIGRTMIN": 34, "RTMIN+3": 37,
		"SIGRTMIN+15": 49, "RTMAX-14": 50, "SIGRTMAX": 64, "64": 64,
	} {
		if got, err := v1alpha1.ParseSignal(text); err != nil || got != want {
			t.Errorf("%s: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "32", "33", "65", "+5", "015", "term", "SIG", "-", "SIG-",
		"SIGRTMIN+16", "RTMAX-15", "SIGRTMIN+0", "SIGSIGTERM", "9999999999"} {
		if got, err := v1alpha1.ParseSignal(text); err == nil {
			t.Errorf("%q is taken for signal %d", text, got)
		}
	}
	// Kubernetes accepts all names that a number is given.
	for n := int32(1); n <= 64; n++ {
		name := v1alpha1.SignalName(n)
		if n == 32 || n == 33 {
			if name != "" {
				t.Errorf("signal %d is called %s", n, name)
			}
			continue
		}
		if back, err := v1alpha1.ParseSignal(name); err != nil || back != n {
			t.Errorf("signal %d is called %s, which is %d, %v", n, name, back, err)
		}
	}
	for n, want := range map[int32]corev1.Signal{6: corev1.SIGABRT, 29: corev1.SIGIO, 16: corev1.SIGSTKFLT,
		49: corev1.SIGRTMINPLUS15, 50: corev1.SIGRTMAXMINUS14, 64: corev1.SIGRTMAX} {
		if got := v1alpha1.SignalName(n); got != string(want) {
			t.Errorf("signal %d is called %s, Kubernetes calls it %s", n, got, want)
		}
	}
}

func TestStopSignalMustBeASignal(t *testing.T) {
	for text, fix := range map[string]string{
		"sigterm": "SIGTERM", "SIGNAL": "SIGQUIT", "0": "SIGQUIT", "kill ": "SIGKILL",
	} {
		s := service(t, "{}")
		s.Spec.StopSignal = text
		for name, errs := range map[string]v1alpha1.ValidationErrors{
			"machine": v1alpha1.Validate(s), "cluster": v1alpha1.ValidateCluster(s),
		} {
			if len(errs) != 1 || errs[0].Field != "spec.stopSignal" || errs[0].Fix != "write stopSignal: "+fix ||
				!strings.HasPrefix(errs[0].Message, "want the name of a signal or a number from 1 to 64, got ") {
				t.Errorf("%s: %q: %v", name, text, errs)
			}
		}
	}
}

func TestHashKnowsInitAndStopSignal(t *testing.T) {
	hash := func(init *bool, signal string) string {
		s := service(t, "{}")
		s.Spec.Init, s.Spec.StopSignal = init, signal
		return v1alpha1.Hash(&s.Spec)
	}
	yes, no := true, false
	if hash(nil, "") != hash(&no, "") || hash(&yes, "") == hash(&no, "") {
		t.Error("init: false must hash as if it were left out, init: true must not")
	}
	if hash(nil, "15") != hash(nil, "SIGTERM") || hash(nil, "") == hash(nil, "INT") {
		t.Error("a signal must hash by its number")
	}
}
