// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"reflect"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

// TestHashOfEachFieldStays has the hash of a service with each field that makes a pod, and of one with all of them. A
// value that changes would restart the pods of every service with this field in an upgrade of Wangell.
func TestHashOfEachFieldStays(t *testing.T) {
	hashes := map[string]string{
		`{}`:                         "5f082deaad59fd0b",
		`image: c/d:2`:               "34fe906814075da6",
		`targetPort: 81`:             "24ef0c5151205edd",
		`command: [a, "<b>"]`:        "0f3b203d36812655",
		`args: [a]`:                  "b9da9cb39732673d",
		`workingDir: /a`:             "25fda3f8a88d6fdf",
		`env: [{name: a, value: b}]`: "e6c07ad6a2e4266d",
		`resources: {limits: {cpu: 1, memory: 64Mi}, requests: {cpu: 10m}}`: "1fc23301de20c757",
		`resources: {limits: {}}`: "8d58e61a788db9ec",
		`volumes: [{name: a, emptyDir: {sizeLimit: 1Mi}},
			{name: b, persistent: {size: 1Gi, retain: true}}]`: "7ea53baad111c767",
		`volumeMounts: [{name: a, mountPath: /a}]`:              "7dbc2c0a092eedc4",
		`securityContext: {runAsUser: 5}`:                       "adf52dfad4c39c9a",
		`securityContext: {}`:                                   "5f082deaad59fd0b",
		`serviceAccountName: a`:                                 "094641c341473a9b",
		`automountServiceAccountToken: true`:                    "aa82092b6579ab0f",
		`automountServiceAccountToken: false`:                   "5f082deaad59fd0b",
		`enableServiceLinks: true`:                              "54d095fb7c32542a",
		`template: {spec: {containers: [{name: a, image: b}]}}`: "fb2b2770ca14de62",
		`init: true`:          "5421ddd4f0a267df",
		`init: false`:         "5f082deaad59fd0b",
		`stopSignal: SIGQUIT`: "ecde37f807a92e5e",
		`readinessProbe: {tcpSocket: {port: 80}}`:                                              "35e2c6834a812adb",
		`startupProbe: {exec: {command: [a]}}`:                                                 "ecc187110655df44",
		`containers: [{name: a, image: b, command: [c], workingDir: /d, securityContext: {}}]`: "6094a33fb7e84183",
		`initContainers: [{name: a, image: b, restartPolicy: Always}]`:                         "3515fc4476eb0d96",
		`envFrom: [{secretRef: {name: a}}]`:                                                    "28864a7c8d9f6c82",
		`layer: {writable: false, sizeLimit: 1Mi}`:                                             "7015cb7ca8086240",
		`{command: [], env: [], containers: []}`:                                               "5f082deaad59fd0b",
		`{targetPort: 81, command: [a], args: [b], workingDir: /c, env: [{name: d, value: e}],
			resources: {limits: {memory: 1Gi}}, volumes: [{name: f, emptyDir: {}}], volumeMounts: [{name: f, mountPath: /g}],
			securityContext: {privileged: true}, serviceAccountName: h, automountServiceAccountToken: true,
			enableServiceLinks: true, template: {metadata: {labels: {i: j}}, spec: {containers: []}}, init: true,
			stopSignal: INT, readinessProbe: {periodSeconds: 1}, startupProbe: {periodSeconds: 2},
			containers: [{name: k, image: l}], initContainers: [{name: m, image: n}],
			envFrom: [{configMapRef: {name: o}}], layer: {snapshotter: p}}`: "d3c7f74751fa725d",
	}
	for text, want := range hashes {
		if got := v1alpha1.Hash(&service(t, text).Spec); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	s := service(t, "{}")
	s.Spec.Config = &v1alpha1.ConfigData{}
	if got, want := v1alpha1.Hash(&s.Spec), hashes["{}"]; got != want {
		t.Errorf("without data: got %s, want %s", got, want)
	}
	s.Spec.Config.Add(v1alpha1.KindSecret, "a", map[string][]byte{"b": []byte("c")})
	if got, want := v1alpha1.Hash(&s.Spec), "4e2b1b998759be77"; got != want {
		t.Errorf("with a Secret: got %s, want %s", got, want)
	}
}

func TestHashCoversFieldsThatMakeAPod(t *testing.T) {
	base := service(t, "{targetPort: 8080}").Spec
	spec := reflect.TypeFor[v1alpha1.WangellServiceSpec]()
	for i := range spec.NumField() {
		name := spec.Field(i).Name
		other := base.DeepCopy()
		fill(reflect.ValueOf(other).Elem().Field(i))
		changed := v1alpha1.Hash(other) != v1alpha1.Hash(&base)
		if want := v1alpha1.MakesPod(name); changed != want {
			t.Errorf("%s: hash changed: %t, want %t", name, changed, want)
		}
	}
}
