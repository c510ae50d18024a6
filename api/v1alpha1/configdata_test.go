// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
)

// secretive returns a service with data.
func secretive(t *testing.T, spec string) *v1alpha1.WangellService {
	t.Helper()
	s := service(t, spec)
	s.Spec.Config = new(v1alpha1.ConfigData)
	s.Spec.Config.Add(v1alpha1.KindSecret, "db", map[string][]byte{"USER": []byte("u"), "PASSWORD": []byte("hunter2")})
	s.Spec.Config.Add(v1alpha1.KindConfigMap, "app", map[string][]byte{"USER": []byte("other"), "app.conf": []byte("x=1")})
	return s
}

func TestEnvironmentIsThatOfKubelet(t *testing.T) {
	s := secretive(t, `{
		envFrom: [{secretRef: {name: db}}, {prefix: APP_, configMapRef: {name: app}},
			{secretRef: {name: none, optional: true}}],
		env: [
			{name: PW, valueFrom: {secretKeyRef: {name: db, key: PASSWORD}}},
			{name: NONE, valueFrom: {secretKeyRef: {name: db, key: none, optional: true}}},
			{name: URL, value: "pg://$(USER):$(PW)@db/$(LATER)$$(PW)$x$("},
			{name: USER, value: me}, {name: LATER, value: $(USER)}]}`)
	got := map[string]string{}
	for _, v := range s.Spec.Environment() {
		got[v.Name] = v.Value
	}
	want := map[string]string{
		"USER": "me", "PASSWORD": "hunter2", "APP_USER": "other", "APP_app.conf": "x=1", "PW": "hunter2",
		"URL": "pg://u:hunter2@db/$(LATER)$(PW)$x$(", "LATER": "me",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	args := v1alpha1.ExpandArguments([]string{"-u=$(USER)", "$$(USER)", "$(nothing)"}, []corev1.EnvVar{
		{Name: "USER", Value: "a"}, {Name: "USER", Value: "b"},
	})
	if !slices.Equal(args, []string{"-u=b", "$(USER)", "$(nothing)"}) {
		t.Errorf("got %q", args)
	}
}

func TestFilesOfVolumesHaveKeysAndModes(t *testing.T) {
	s := secretive(t, `volumes: [{name: a, secret: {secretName: db, defaultMode: 256}},
		{name: b, configMap: {name: app, items: [{key: app.conf, path: etc/x, mode: 384}]}}, {name: c, emptyDir: {}},
		{name: d, secret: {secretName: none, optional: true}}]`)
	var got []string
	for i := range s.Spec.Volumes {
		for _, f := range s.Spec.Files(&s.Spec.Volumes[i]) {
			got = append(got, fmt.Sprintf("%s/%s %o %s", s.Spec.Volumes[i].Name, f.Path, f.Mode, f.Data))
		}
	}
	if want := "a/PASSWORD 400 hunter2, a/USER 400 u, b/etc/x 600 x=1"; strings.Join(got, ", ") != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestHashKnowsTheDataOfSecrets(t *testing.T) {
	a, b := secretive(t, "{}"), secretive(t, "{}")
	if v1alpha1.Hash(&a.Spec) != v1alpha1.Hash(&b.Spec) {
		t.Error("the same data has two hashes")
	}
	b.Spec.Config.Secrets["db"]["PASSWORD"] = []byte("other")
	if v1alpha1.Hash(&a.Spec) == v1alpha1.Hash(&b.Spec) {
		t.Error("another password has the same hash")
	}
}

func TestValuesOfSecretsAreNotPrinted(t *testing.T) {
	s := secretive(t, "env: [{name: PW, valueFrom: {secretKeyRef: {name: db, key: PASSWORD}}}]")
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, printed := range []string{
		string(text), fmt.Sprintf("%v", s.Spec), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s.Spec.Config),
		fmt.Sprint(s.Spec.Config),
	} {
		if strings.Contains(printed, "hunter2") || strings.Contains(printed, fmt.Sprint([]byte("hunter2"))) {
			t.Errorf("printed: %s", printed)
		}
	}
}
