// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const header = "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: hello}\n"

// TestErrors has a file a case and every line that its errors make, without the file's name.
func TestErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"port as text": {`apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata:
  name: hello
spec:
  image: a/b
  targetPort: 8080

  port: "80"
`, `:9:9: spec.port: want a number from 1 to 65535, got the text "80": write port: 80`},
		"port out of range": {header + "spec: {image: a/b, port: 99999}\n",
			`:4:26: spec.port: want a number from 1 to 65535, got the number 99999: write port: 80`},
		"zero is not left out": {header + "spec: {image: a/b, port: 80, idleTimeout: 0, terminationGracePeriodSeconds: 0}\n",
			`:4:43: spec.idleTimeout: want a number from 1 to 31536000, got the number 0: write idleTimeout: 300`},
		"port is a fraction": {header + "spec: {image: a/b, port: 80.0}\n",
			`:4:26: spec.port: want a number from 1 to 65535, got the number 80.0: write port: 80`},
		"too large for the type": {header + "spec: {image: a/b, port: 80, maxParked: 99999999999999999999}\n",
			`:4:41: spec.maxParked: want a number from 1 to 4096, got the number 99999999999999999999: write maxParked: 1024`},
		"port is a list": {header + "spec:\n  image: a/b\n  port: [80]\n",
			`:6:9: spec.port: want a number from 1 to 65535, got a list: write port: 80`},
		"unknown fields": {header + "spec:\n  image: a/b\n  prot: 80\n  color: red\n  env: [{nmae: A, value: b}]\n  volumes: [{name: a, hostpath: {path: /a}}]\n", `
:6:3: spec.prot: unknown field: did you mean port?
:7:3: spec.color: unknown field: remove it; the fields here are address, args, balancing, command, drainTimeout, env, idleTimeout, image, imagePullPolicy, maxParked, maxParkedPerSource, maxReplicas, minReplicas, port, resources, retries, scaling, securityContext, sessionAffinity, targetPort, terminationGracePeriodSeconds, volumeMounts, volumes, wakeTimeout, workingDir
:8:10: spec.env[0].nmae: unknown field: did you mean name?
:9:23: spec.volumes[0].hostpath: unknown field: did you mean hostPath?`},
		"not below spec": {header + "port: 80\nspec: {image: a/b}\n",
			`:4:1: port: unknown field: did you mean spec.port? Write it below spec:, indented`},
		"case": {strings.ToLower(header) + "spec: {}\n",
			`:2:7: kind: want WangellService, got "wangellservice": write kind: WangellService`},
		"text is a number": {header + "spec: {image: a/b, port: 80, env: [{name: A, value: 1.10}], args: [5, no]}\n", `
:4:53: spec.env[0].value: want text, got the number 1.10: write value: "1.10"
:4:68: spec.args[0]: want text, got the number 5: write "5"
:4:71: spec.args[1]: want text, got no, which Kubernetes takes for true or false: write "no"`},
		"not a list": {header + "spec: {image: a/b, port: 80, command: sh -c x, args: 'echo \"a b\"', env: {A: b}}\n", `
:4:39: spec.command: want a list, got the text "sh -c x": write command: ["sh", "-c", "x"]
:4:54: spec.args: want a list, got the text "echo \"a b\"": write args: ["echo \"a b\""]
:4:73: spec.env: want a list, got fields: write a list: each item in a line of its own, after a dash`},
		"not a bool": {header + "spec: {image: a/b, port: 80, securityContext: {privileged: yes, readOnlyRootFilesystem: 0}}\n", `
:4:60: spec.securityContext.privileged: want true or false, got the text "yes": write privileged: true
:4:89: spec.securityContext.readOnlyRootFilesystem: want true or false, got the number 0: write readOnlyRootFilesystem: false`},
		"not fields": {header + "spec: {image: a/b, port: 80, resources: 5, volumes: [data], securityContext: []}\n", `
:4:41: spec.resources: want fields, got the number 5: write its fields below it, indented: limits, requests
:4:54: spec.volumes[0]: want fields, got the text "data": write its fields below it, indented: emptyDir, hostPath, name
:4:78: spec.securityContext: want fields, got a list: write its fields below it, indented: capabilities, privileged, readOnlyRootFilesystem, runAsGroup, runAsUser`},
		"quantities": {header + "spec:\n  image: a/b\n  port: 80\n  resources:\n    limits: {cpu: half, memory: 64MB}\n    requests: {memory: 1e999999999, cpu: 010}\n", `
:8:19: spec.resources.limits[cpu]: want a quantity such as 500m, 2 or 64Mi, got the text "half": write cpu: 500m
:8:33: spec.resources.limits[memory]: want a quantity such as 500m, 2 or 64Mi, got the text "64MB": write memory: 64Mi
:9:24: spec.resources.requests[memory]: want a quantity such as 500m, 2 or 64Mi, got the text "1e999999999": write memory: 64Mi
:9:42: spec.resources.requests[cpu]: want a quantity such as 500m, 2 or 64Mi, got the number 010: write cpu: 500m`},
		"time": {"apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: hello, creationTimestamp: today}\nspec: {image: a/b, port: 80}\n",
			`:3:44: metadata.creationTimestamp: want a time such as 2024-11-16T16:29:14Z, got the text "today": write creationTimestamp: 2024-11-16T16:29:14Z`},
		"twice": {header + "spec:\n  image: a/b\n  port: 80\n  image: c/d\n",
			`:7:3: spec.image: is given twice, first in line 5: remove one of the two`},
		"empty item": {header + "spec:\n  image: a/b\n  port: 80\n  args:\n  -\n  resources: {limits: {cpu: }}\n", `
:8:4: spec.args[0]: is empty: give it a value or remove it
:9:29: spec.resources.limits[cpu]: is empty: give it a value or remove it`},
		"missing": {"apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nspec:\n  targetPort: 8080\n", `
:1:1: metadata.name: missing: write a name for the service, for example name: hello
:3:1: spec.image: missing: write which image to run, for example image: registry.example.com/app:v1
:3:1: spec.port: missing: write the port that clients use, for example port: 80`},
		"meaning, with its line": {header + "spec:\n  image: a/b\n  port: 80\n  env:\n  - name: A\n  - name: B\n    valueFrom:\n      secretKeyRef: {name: s, key: k}\n  - {name: A}\n", `
:10:5: spec.env[1].valueFrom: is not available on one machine, which has no ConfigMaps, Secrets or pod fields: write value: with the value itself, or mount a file with a hostPath volume and read it there
:12:12: spec.env[2].name: A is already set by spec.env[0]: remove one of the two`},
		"another kind": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n" + header + "spec: {image: a/b, port: 0}\n", `
:2:7: kind: want WangellService, got "Deployment": write kind: WangellService
:8:26: spec.port: want a number from 1 to 65535, got the number 0: write port: 80`},
		"a list of services": {"apiVersion: v1\nkind: List\nitems: []\n",
			`:2:7: kind: want WangellService, got "List": write each WangellService as a document of its own, with --- between them`},
		"another version": {"apiVersion: wangell.loutres.me/v1\nkind: WangellService\nmetadata: {name: hello}\nspec: {image: a/b, port: 80}\n",
			`:1:13: apiVersion: want wangell.loutres.me/v1alpha1, got "wangell.loutres.me/v1": write apiVersion: wangell.loutres.me/v1alpha1`},
		"nothing of it": {"image: a/b\nport: 80\n", `:1:1: kind: want WangellService, got nothing: write kind: WangellService`},
		"a text":        {"hello\n", `:1:1: want a WangellService, got the text "hello": begin with apiVersion: wangell.loutres.me/v1alpha1`},
		"empty":         {"# nothing\n---\n", `: there is no document in it: write a WangellService or remove the file`},
		"a tab":         {header + "spec:\n\timage: a/b\n\tport: 80\n", `:5:1: YAML: a tab indents this line: write spaces, two a level`},
		"a tab later":   {header + "spec:\n  image: a/b\n\tport: 80\n", `:6:1: YAML: a tab indents this line: write spaces, two a level`},
		"a colon":       {header + "spec:\n  image: a: b\n", `:5: YAML: mapping values are not allowed in this context: check the indentation`},
		"indentation":   {header + "spec:\n  image: a/b\n port: 80\n", `:6: YAML: did not find expected key: check that the lines of this block begin in the same column`},
		"open quote":    {header + "spec:\n  image: \"a/b\n", `YAML: found unexpected end of stream`},
		"alias":         {header + "spec: *x\n", `YAML: unknown anchor 'x' referenced`},
		"bad merge":     {header + "spec: {<<: 5, image: a/b, port: 80}\n", `:4:12: spec: nothing to merge here: write <<: *name, the name of an anchor`},
		"odd key":       {header + "spec: {[a]: 5, image: a/b, port: 80}\n", `:4:8: spec: the name of a field must be plain text: write name: value`},
		"what a terminal would obey": {header + "spec: {image: \"a\\x1b[2J\", port: 80, \"\\x1b[31m\": 1}\n", `
:4:15: spec.image: "a\x1b[2J" is not an image reference: repository can only contain the characters` + " `abcdefghijklmnopqrstuvwxyz0123456789_-./`" + `: write registry/name:tag or registry/name@sha256:..., for example image: registry.example.com/app:v1
:4:37: spec.\x1b[31m: unknown field: remove it; the fields here are`},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, write(t, map[string]string{"f.yaml": c.text}), "f.yaml", c.want)
		})
	}
}

// check loads a file and compares the lines of its errors, each by its beginning, or anywhere in
// the one line if what is wanted has no place.
func check(t *testing.T, dir, file, want string) {
	t.Helper()
	set, err := load(t, "", filepath.Join(dir, file))
	if err == nil || set != nil {
		t.Fatalf("no error, and %d services", len(set))
	}
	got := strings.Split(strings.ReplaceAll(err.Error(), filepath.Join(dir, file), ""), "\n")
	wanted := strings.Split(strings.TrimPrefix(want, "\n"), "\n")
	ok := len(got) == len(wanted)
	for i := 0; ok && i < len(got); i++ {
		ok = strings.HasPrefix(got[i], wanted[i]) || wanted[i][0] != ':' && strings.Contains(got[i], wanted[i])
	}
	if !ok {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

func TestErrorsOfJSON(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"comma":     {"{\n\t\"kind\": \"WangellService\",\n\t\"spec\": {},\n}", ":4:1: JSON: invalid character '}'"},
		"end":       {"{\n\"kind\": \"Wang", "JSON: unexpected EOF"},
		"type":      {"{\"apiVersion\": \"wangell.loutres.me/v1alpha1\", \"kind\": \"WangellService\", \"metadata\": {\"name\": \"a\"},\n  \"spec\": {\"image\": \"a/b\",\n   \"port\": \"80\"}}", `:3:12: spec.port: want a number from 1 to 65535, got the text "80": write port: 80`},
		"not YAML":  {"kind: WangellService", ":1:1: JSON: invalid character 'k'"},
		"twice":     {"{\"apiVersion\": \"wangell.loutres.me/v1alpha1\", \"kind\": \"WangellService\", \"metadata\": {\"name\": \"a\"},\n \"spec\": {\"image\": \"a/b\", \"port\": 80, \"port\": 80}}", ":2:39: spec.port: is given twice, first in line 2"},
		"too deep":  {strings.Repeat("[", 5000), "JSON: nested deeper than 100 levels"},
		"something": {"[1]", `:1:1: want a WangellService, got a list`},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, write(t, map[string]string{"f.json": c.text}), "f.json", c.want)
		})
	}
}

func TestErrorsOfFiles(t *testing.T) {
	dir := write(t, map[string]string{"good.yaml": doc("a", hello), "bad.yaml": doc("b", "image: a/b, port: x"), "worse.yaml": "{"})
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := load(t, "", dir, filepath.Join(dir, "missing.yaml"))
	want := []string{
		"bad.yaml:1:111: spec.port: want a number from 1 to 65535, got the text \"x\": write port: 80",
		"dangling.yaml: no such file or directory: check the name; it is looked up from the folder in which you are",
		"missing.yaml: no such file or directory: check the name; it is looked up from the folder in which you are",
		"worse.yaml:1: YAML: did not find expected node content: check the quotes, brackets and indentation here and in the line before",
	}
	if err == nil || strings.ReplaceAll(err.Error(), dir+"/", "") != strings.Join(want, "\n") {
		t.Errorf("got\n%v", err)
	}
}

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{
		"prot": "port", "Port": "port", "targetport": "targetPort", "target_port": "targetPort", "imagePullPolcy": "imagePullPolicy",
		"idle": "", "x": "", "enviroment": "", "por": "port", "ports": "port",
	} {
		if got, _ := nearest(word, []string{"port", "targetPort", "imagePullPolicy", "idleTimeout", "env", "args"}); got != want {
			t.Errorf("%s: got %q, want %q", word, got, want)
		}
	}
}
