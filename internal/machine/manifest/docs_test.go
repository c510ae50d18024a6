// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
)

func TestExamplesAreValid(t *testing.T) {
	set, err := load(t, "", "../../../examples")
	if err != nil {
		t.Fatal(err)
	}
	const want = "default/hello default/nginx default/postgres default/python default/redis default/serverless-example"
	if got := names(set); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if s := set.Get("default/serverless-example").Spec; s.IdleTimeout != 1800 ||
		s.Image != "registry.loutres.me/helloworld-go:latest" ||
		s.TargetPort != 8080 ||
		s.Port != 80 {
		t.Errorf("serverless-example: %+v", s)
	}
	if s := set.Get("default/hello").Spec; s.IdleTimeout != 10 || s.Image != "wangell.local/hello:v1" ||
		s.TargetPort != 8080 ||
		s.Port != 80 {
		t.Errorf("hello: %+v", s)
	}
}

// readDocs returns all pages of docs/manifest, the generated reference among them.
func readDocs(t *testing.T) string {
	t.Helper()
	pages, err := filepath.Glob("../../../docs/manifest/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	var all strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Manifests for Kubernetes may fail only because one machine lacks a field that they use.
func TestExamplesInDocsAreValid(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readDocs(t), -1)
	if len(blocks) < 3 {
		t.Fatalf("only %d blocks", len(blocks))
	}
	for _, b := range blocks {
		parts := strings.Split(b[1], "\n---\n")
		if strings.Contains(b[1], "kind: Secret\n") || strings.Contains(b[1], "\n  traffic:\n") {
			parts = []string{b[1]} // its services refer to it, or to one another
		}
		for _, part := range parts {
			if !strings.Contains(part, "kind: "+v1alpha1.Kind+"\nmetadata") {
				continue // another kind, such as an autoscaler
			}
			_, err := load(t, part, "-")
			if err != nil && !strings.Contains(err.Error(), "is not available on one machine") {
				t.Errorf("%v in\n%s", err, part)
			}
		}
	}
}

// Every field needs a row with its range and default.
func TestDocsDescribeEveryField(t *testing.T) {
	docs := readDocs(t)
	rows := map[string]string{}
	for line := range strings.SplitSeq(docs, "\n") {
		if strings.HasPrefix(line, "| `") {
			cell, _, _ := strings.Cut(line[2:], " |")
			for name := range strings.SplitSeq(cell, ", ") {
				rows[strings.Trim(name, "`")] = line
			}
		}
	}
	want := []string{"apiVersion", "kind", "spec", "status"}
	nested := map[string]reflect.Type{
		"metadata.":             reflect.TypeFor[v1alpha1.WangellService]().Field(1).Type,
		"resources.":            reflect.TypeFor[corev1.ResourceRequirements](),
		"securityContext.":      reflect.TypeFor[corev1.SecurityContext](),
		"status.":               reflect.TypeFor[v1alpha1.WangellServiceStatus](),
		"":                      reflect.TypeFor[v1alpha1.WangellServiceSpec](),
		"sleep.":                reflect.TypeFor[v1alpha1.Sleep](),
		"sleep.schedule[].":     reflect.TypeFor[v1alpha1.WarmPeriod](),
		"volumes[].persistent.": reflect.TypeFor[v1alpha1.PersistentVolume](),
		"volumes[].hostPath.":   reflect.TypeFor[corev1.HostPathVolumeSource](),
		"volumes[].emptyDir.":   reflect.TypeFor[corev1.EmptyDirVolumeSource](),
		"volumes[].secret.":     reflect.TypeFor[corev1.SecretVolumeSource](),
		"volumes[].configMap.":  reflect.TypeFor[corev1.ConfigMapVolumeSource](),
		"layer.":                reflect.TypeFor[v1alpha1.Layer](),
		"volumeMounts[].":       reflect.TypeFor[corev1.VolumeMount](),
		"containers[].":         reflect.TypeFor[v1alpha1.Container](),
		"traffic[].":            reflect.TypeFor[v1alpha1.Revision](),
		"sticky.":               reflect.TypeFor[v1alpha1.Sticky](),
	}
	for prefix, typ := range nested {
		fields := v1alpha1.Supported(typ)
		if fields == nil {
			fields = fieldsOf(typ).names
		}
		for _, f := range fields {
			want = append(want, prefix+f)
		}
	}
	// The first two have rows for their fields, the last is described with its list.
	inside := []string{"layer", "resources", "securityContext", "volumeMounts[].name"}
	for _, f := range fieldsOf(reflect.TypeFor[v1alpha1.Container]()).names {
		if _, main := fieldsOf(reflect.TypeFor[v1alpha1.WangellServiceSpec]()).byName[f]; main {
			inside = append(inside, "containers[]."+f) // as in spec, which has a row for it
		}
	}
	for _, name := range want {
		if slices.Contains(inside, name) {
			continue
		}
		row, ok := rows[name]
		if !ok {
			t.Errorf("no row for %s", name)
			continue
		}
		r, ok := v1alpha1.RangeOf("spec." + name)
		if ok && !strings.Contains(row, fmt.Sprintf("%d to %d", r.Min, r.Max)) {
			t.Errorf("%s: the row does not say %d to %d: %s", name, r.Min, r.Max, row)
		}
	}
	for name, value := range map[string]int{
		"idleTimeout":                   v1alpha1.DefaultIdleTimeout,
		"wakeTimeout":                   v1alpha1.DefaultWakeTimeout,
		"terminationGracePeriodSeconds": v1alpha1.DefaultTerminationGracePeriodSeconds,
		"maxParked":                     v1alpha1.DefaultMaxParked,
		"maxParkedPerSource":            v1alpha1.DefaultMaxParkedPerSource,
	} {
		cells := strings.Split(rows[name], "|")
		if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[3]), fmt.Sprint(value)) {
			t.Errorf("%s: the row does not say that the default is %d: %s", name, value, rows[name])
		}
	}
}

// The test compares the lists in docs/manifest/files.md with v1alpha1.Hash.
func TestDocsListWhatRestartsPods(t *testing.T) {
	_, section, _ := strings.Cut(readDocs(t), "## What a change restarts")
	restarts, rest, _ := strings.Cut(section, "Another way to write")
	restarts, _, _ = strings.Cut(restarts, "on Kubernetes also")
	_, rest, _ = strings.Cut(rest, "restarts nothing:")
	keeps, _, _ := strings.Cut(rest, "With `port`")
	base := map[string]string{
		"image": "a/b", "port": "80", "targetPort": "80", "volumes": "[{name: data, emptyDir: {}}]",
	}
	changes := map[string]string{
		"image": `a/c`, "targetPort": `81`, "command": `[a]`, "args": `[a]`, "workingDir": `/a`, "env": `[{name: A}]`,
		"layer": `{writable: false}`, "imageVolumes": `Discard`,
		"envFrom":   `[{secretRef: {name: a, optional: true}}]`,
		"resources": `{limits: {cpu: 1}}`, "volumes": `[{name: a, emptyDir: {}}]`,
		"volumeMounts": `[{name: data, mountPath: /a}]`, "securityContext": `{privileged: true}`,
		"ports": `[{name: a, port: 81}]`, "port": `81`, "hostPort": `82`, "hostAddress": `127.0.0.1, hostPort: 82`,
		"address": `10.0.0.1`, "idleTimeout": `2`, "imagePullPolicy": `Never`,
		"wakeTimeout": `1`, "terminationGracePeriodSeconds": `1`, "maxParked": `1`, "maxParkedPerSource": `1`,
		"minReplicas": `1`, "maxReplicas": `2`, "scaling": `{target: 5}`, "sessionAffinity": `ClientIP`,
		"balancing": `{localityPreference: Local}`, "retries": `1`, "drainTimeout": `1`,
		"wakeProof": `Always`, "updateStrategy": `Recreate`, "init": `true`, "stopSignal": `SIGINT`,
		"readyWhen": `Listen`, "readinessProbe": `{tcpSocket: {port: 80}}, readyWhen: Probe`,
		"startupProbe": `{tcpSocket: {port: 81}}, readyWhen: Probe, readinessProbe: {tcpSocket: {port: 80}}`,
		"allowFrom":    `[10.0.0.0/8]`, "imagePull": `{policy: Always, when: Wake}`,
		"sleep":      `{predict: true, freezeAfter: 5s}`,
		"containers": `[{name: x, image: a/b}]`, "initContainers": `[{name: x, image: a/b}]`,
	}
	// hash returns the hash of base with one field changed.
	hash := func(name, value string) string {
		t.Helper()
		fields := maps.Clone(base)
		if name == "ports" { // in place of these
			delete(fields, "port")
			delete(fields, "targetPort")
		}
		fields[name] = value
		spec := ""
		for k, v := range fields {
			spec += k + ": " + v + ", "
		}
		set, err := load(t, doc("a", spec), "-")
		if err != nil {
			t.Fatal(err)
		}
		return v1alpha1.Hash(&set[0].Spec)
	}
	for _, name := range v1alpha1.Supported(reflect.TypeFor[v1alpha1.WangellServiceSpec]()) {
		if name == "traffic" || name == "sticky" { // of services without pods
			if !strings.Contains(keeps, "`"+name+"`") {
				t.Errorf("%s: docs/manifest does not say that a change restarts nothing", name)
			}
			continue
		}
		value, ok := changes[name]
		if !ok {
			t.Errorf("%s: add a change of this field to the test", name)
			continue
		}
		restart := hash(name, value) != hash("image", "a/b")
		if strings.Contains(restarts, "`"+name+"`") != restart || strings.Contains(keeps, "`"+name+"`") == restart {
			t.Errorf("%s: a change restarts pods: %t, but docs/manifest disagrees", name, restart)
		}
	}
}

func TestExamplesBeginWithAComment(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(f) != "serverless-example.yaml" && !strings.HasPrefix(string(text), "# ") {
			t.Errorf("%s does not begin with a comment", f)
		}
	}
}
