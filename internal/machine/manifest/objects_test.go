// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

const secret = `
apiVersion: v1
kind: Secret
metadata: {name: db, creationTimestamp: "2026-01-01T00:00:00Z"}
type: Opaque
data:
  user: YWRtaW4=
stringData:
  password: hunter2
---
`

const config = `
{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {LEVEL: info}, binaryData: {blob: AAE=}}
---
`

const refers = "env: [{name: PW, valueFrom: {secretKeyRef: {name: db, key: password}}}], " +
	"envFrom: [{configMapRef: {name: app}}], " + hello

// environment returns the variables of a service as one text.
func environment(s *v1alpha1.WangellService) string {
	var all []string
	for _, v := range s.Spec.Environment() {
		all = append(all, v.Name+"="+v.Value)
	}
	return strings.Join(all, " ")
}

func TestServicesGetTheDataOfSecretsAndConfigMaps(t *testing.T) {
	dir := write(t, map[string]string{
		"secret.yaml": secret,
		"all.yaml":    strings.Replace(config, "binaryData: {blob: AAE=}", "immutable: true", 1) + doc("a", refers),
	})
	set, err := load(t, "", dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := environment(set.Get("default/a")); got != "LEVEL=info PW=hunter2" {
		t.Errorf("got %q", got)
	}
	if got := set.Get("default/a").Spec.Config.Secrets["db"]["user"]; string(got) != "admin" {
		t.Errorf("user is %q", got)
	}
}

func TestMissingSecretsAreLocatedErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{doc("a", refers), ":1:143: spec.env[0].valueFrom.secretKeyRef.name: there is no Secret \"db\" in this namespace: " +
			"add a document with kind: Secret, name: db and namespace: default to one of the files, or write optional: true"},
		{strings.Replace(secret, "password", "pass", 1) + config + doc("a", refers),
			"spec.env[0].valueFrom.secretKeyRef.key: the Secret \"db\" has no key \"password\": its keys are pass, user: " +
				"write one of its keys"},
		{strings.Replace(secret, "name: db", "name: db, namespace: other", 1) + config + doc("a", refers),
			"there is no Secret \"db\" in this namespace"},
		{secret + config + doc("a", "envFrom: [{configMapRef: {name: app}}, {configMapRef: {name: none}}], "+hello),
			"spec.envFrom[1].configMapRef.name: there is no ConfigMap \"none\""},
		{config + doc("a", "envFrom: [{configMapRef: {name: app}}], "+hello),
			"the value of \"blob\" in the ConfigMap \"app\" contains a NUL character"},
		{doc("a", "volumes: [{name: v, secret: {secretName: none}}], "+hello),
			"spec.volumes[0].secret.secretName: there is no Secret \"none\""},
		{doc("a", "containers: [{name: x, image: a/b, envFrom: [{secretRef: {name: none}}]}], "+hello),
			"spec.containers[0].envFrom[0].secretRef.name: there is no Secret \"none\""},
		{secret + secret + config, "metadata.name: Secret default/db is already defined at standard input:4"},
		{strings.Replace(secret, "v1", "v2", 1), "apiVersion: want v1, got \"v2\""},
		{strings.Replace(secret, "name: db, ", "", 1), "metadata.name: want at most 253"},
		{strings.Replace(secret, "password", "pass word", 1), "data[pass word]: want letters, digits"},
		{strings.Replace(secret, "stringData", "stringdata", 1), "stringdata: unknown field: did you mean stringData?"},
	} {
		text := c.text
		if strings.Contains(text, refers) || strings.Contains(c.want, "metadata") {
			text = strings.Replace(text, "binaryData: {blob: AAE=}", "binaryData: {}", 1)
		}
		_, err := load(t, text, "-")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v\nwant %s\nin %s", err, c.want, text)
		}
	}
}

// Whatever is wrong with a Secret, its errors show no value.
func TestErrorsShowNoValueOfASecret(t *testing.T) {
	for _, wrong := range []string{
		"stringData: {password: 31337}", "data: {password: 31337}", "data: {password: s3s4me!}",
		"stringData: {password: [s3s4me]}", "stringData: s3s4me", "data: [s3s4me]", "stringData: {password: *s3s4me}",
		"stringData: {password: 31337.5}", "stringData: {password: true, other: yes}", "stringData:\n  password: 's3s4me",
		"stringData: {password: \"s3s4me\\x\"}", "stringData: {password: s3s4me: a}",
	} {
		_, err := load(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\n"+wrong+"\n", "-")
		if err == nil {
			t.Errorf("%s: no error", wrong)
			continue
		}
		for _, value := range []string{"31337", "s3s4me", "got true", "got yes"} {
			if strings.Contains(err.Error(), value) {
				t.Errorf("%s: the error shows it: %v", wrong, err)
			}
		}
	}
}

func TestAChangedSecretChangesItsServices(t *testing.T) {
	dir := write(t, map[string]string{
		"secret.yaml": secret, "b.yaml": doc("b", hello),
		"a.yaml": strings.Replace(config, "AAE=", "YQ==", 1) + doc("a", refers),
	})
	r := NewReader([]string{dir}, nil)
	first, err := r.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "secret.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(strings.Replace(secret, "hunter2", "hunter3", 1))
	second, err := r.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if added, changed, removed := Diff(first, second); len(added)+len(removed) > 0 || names(changed) != "default/a" {
		t.Errorf("added %s, changed %s, removed %s", names(added), names(changed), names(removed))
	}
	// While the file is wrong, and once it is gone, the services keep what they have.
	for _, text := range []string{"kind: Secret", strings.Replace(secret, "name: db", "name: gone", 1)} {
		put(text)
		kept, err := r.Load(t.Context())
		if err == nil || names(kept) != "default/a default/b" ||
			!strings.Contains(environment(kept.Get("default/a")), "hunter3") {
			t.Errorf("%s: %v, %s", text, err, names(kept))
		}
	}
}
