// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
)

// write creates files in a new folder and returns the folder.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// doc returns a document on one line, with a name and the fields of its spec.
func doc(name, spec string) string {
	const format = "{apiVersion: wangell.loutres.me/v1alpha1, kind: WangellService, metadata: {name: %s}, spec: {%s}}\n"
	return fmt.Sprintf(format, name, spec)
}

// jsonDoc is a document in JSON with a name.
func jsonDoc(name string) string {
	return fmt.Sprintf(`{"apiVersion": "wangell.loutres.me/v1alpha1", "kind": "WangellService",
	"metadata": {"name": %q}, "spec": {"image": "a/b", "port": 80}}`, name)
}

const hello = "image: wangell.local/hello:v1, port: 80"

func load(t *testing.T, stdin string, sources ...string) (Set, error) {
	t.Helper()
	return NewReader(sources, strings.NewReader(stdin)).Load(t.Context())
}

func names(set []*v1alpha1.WangellService) string {
	var all []string
	for _, s := range set {
		all = append(all, s.Namespace+"/"+s.Name)
	}
	return strings.Join(all, " ")
}

func TestLoadReadsFilesFoldersAndStdin(t *testing.T) {
	dir := write(t, map[string]string{
		"b.yaml": doc("b2", hello) + "---\n# nothing here\n---\n" + doc("b1", hello),
		"a.yml":  "\ufeff" + doc("a", hello),
		"c.json": `{"apiVersion": "wangell.loutres.me/v1alpha1", "kind": "WangellService",
	"metadata": {"name": "c", "annotations": {"note": "\ud83d\ude00"}},
	"spec": {"image": "wangell.local\/hello:v1", "port": 80}} ` + jsonDoc("c2"),
		"ignored.txt":  "%",
		".hidden.yaml": "%",
	})
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A file that is named twice, even by another path, is read once.
	stdin := `{"apiVersion": "wangell.loutres.me/v1alpha1", "kind": "WangellService",
		"metadata": {"name": "z", "namespace": "a", "labels": {"x": "\ud83d\ude00"}},
		"spec": {"image": "a/b", "port": 80}}`
	set, err := load(t, stdin, dir, filepath.Join(dir, ".", "a.yml"), "-")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(set), "a/z default/a default/b1 default/b2 default/c default/c2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := set.Get("default/c"); got == nil || got.Annotations["note"] != "\U0001f600" ||
		got.Spec.Image != "wangell.local/hello:v1" {
		t.Errorf("got %+v", got)
	}
	if set.Get("a/z").Labels["x"] != "\U0001f600" || set.Get("default/z") != nil || set.Get("x") != nil {
		t.Error("Get returns the wrong service")
	}
	if s := set.Get("default/a"); s.Spec.TargetPort != 80 || s.Spec.IdleTimeout != 300 {
		t.Errorf("defaults are missing: %+v", s.Spec)
	}
}

func TestLoadReadsEveryField(t *testing.T) {
	set, err := load(t, `
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata:
  name: all
  namespace: team
  creationTimestamp: null
  managedFields: [{manager: kubectl, time: "2024-11-16T16:29:14Z", fieldsV1: {"f:spec": {".": {}}}}]
spec: &spec
  image: "registry.example.com/app:v1"
  port: 0x50
  targetPort: 8_080
  idleTimeout: 1
  address: 10.46.100.9
  imagePullPolicy: Never
  command: &words [a, "8080", 2024-11-16]
  args: *words
  workingDir: /srv
  env:
  - {name: A, value: "yes"}
  - name: B
    value: |
      two
      lines
  resources: {limits: {cpu: 0.5, memory: 64Mi}, requests: {cpu: 100m}}
  volumes:
  - name: data
    hostPath: {path: /srv, type: Directory}
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 1e6}
  volumeMounts:
  - &mount {name: data, mountPath: /data, readOnly: true}
  - {<<: *mount, mountPath: /data2}
  securityContext: {runAsUser: 0, capabilities: {drop: [ALL]}}
  wakeTimeout: 5
  terminationGracePeriodSeconds: 0
  maxParked: 7
status: {replicas: many, unknown: [1]}
`, "-")
	if err != nil {
		t.Fatal(err)
	}
	s := set[0].Spec
	if s.Port != 80 || s.TargetPort != 8080 || *s.TerminationGracePeriodSeconds != 0 || s.MaxParked != 7 ||
		s.MaxParkedPerSource != 7 ||
		*s.SecurityContext.RunAsUser != 0 ||
		s.SecurityContext.Capabilities.Drop[0] != "ALL" {
		t.Errorf("got %+v", s)
	}
	if want := []string{"a", "8080", "2024-11-16"}; !reflect.DeepEqual(s.Command, want) ||
		!reflect.DeepEqual(s.Args, want) {
		t.Errorf("got %q and %q", s.Command, s.Args)
	}
	if s.Env[1].Value != "two\nlines\n" || s.Resources.Limits.Cpu().MilliValue() != 500 ||
		s.Volumes[1].EmptyDir.SizeLimit.Value() != 1e6 {
		t.Errorf("got %+v", s)
	}
	merged := corev1.VolumeMount{Name: "data", MountPath: "/data2", ReadOnly: true}
	if m := s.VolumeMounts[1]; !reflect.DeepEqual(m, merged) {
		t.Errorf("merged: %+v", m)
	}
	if !reflect.DeepEqual(set[0].Status, v1alpha1.WangellServiceStatus{}) {
		t.Errorf("status is not ignored: %+v", set[0].Status)
	}
	if got := string(set[0].ManagedFields[0].FieldsV1.GetRawBytes()); got != `{"f:spec":{".":{}}}` {
		t.Errorf("managed fields: %s", got)
	}
}

// The decoder panics on a type that it does not support, so this test walks all types of a manifest.
func TestEveryTypeCanBeDecoded(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		if seen[typ] || isLeaf(typ) {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Struct:
			for name, index := range fieldsOf(typ).byName {
				walk(typ.FieldByIndex(index).Type, path+"."+name)
			}
		case reflect.Map:
			if typ.Key().Kind() != reflect.String {
				t.Errorf("%s: keys are %s", path, typ.Key())
			}
			walk(typ.Elem(), path+"[]")
		case reflect.Pointer, reflect.Slice:
			walk(typ.Elem(), path+"[]")
		case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64:
		default:
			t.Errorf("%s: %s cannot be decoded", path, typ)
		}
	}
	walk(reflect.TypeFor[v1alpha1.WangellService](), "")
	if len(seen) < 50 {
		t.Errorf("only %d types", len(seen))
	}
}

func TestConflictingServicesAreRefused(t *testing.T) {
	dir := write(t, map[string]string{
		"a.yaml": doc("one", hello+", address: 10.46.100.5") + "---\n" + doc("two", hello+", address: 10.46.100.6"),
		"b.yaml": "# a comment\n" + doc("one", hello),
		"c.yaml": doc("three", hello+", address: 10.46.100.5") + "---\n" +
			doc("four", "image: a/b, port: 81, address: 10.46.100.6"),
		"d.yaml": doc("five", "image: a/b"),
	})
	set, err := load(t, "", dir)
	if names(set) != "default/one default/two" {
		t.Errorf("got %v, want the services of the file without a mistake", names(set))
	}
	want := strings.Join([]string{
		"b.yaml:2:82: metadata.name: service default/one is already defined at a.yaml:1: " +
			"use another name or namespace, or remove one of the two",
		"c.yaml:1:147: spec.address: 10.46.100.5:80 is already the service address of default/one at a.yaml:1: " +
			"use another address, or leave it out",
		"c.yaml:3:127: spec.address: 10.46.100.6 is already the address of default/two at a.yaml:3, " +
			"and an address belongs to one service: use another address, or leave it out",
		"d.yaml:1:89: spec.port: missing: write the port that clients use, for example port: 80",
	}, "\n")
	if err == nil || strings.ReplaceAll(err.Error(), dir+"/", "") != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var one *Error
	if !errors.As(err, &one) || one.Line != 2 || one.Field != "metadata.name" {
		t.Errorf("errors.As: %+v", one)
	}
	// The same name in another namespace is another service.
	other := strings.Replace(doc("one", hello), "name: one", "name: one, namespace: team", 1)
	if set, err := load(t, doc("one", hello)+"---\n"+other, "-"); err != nil || len(set) != 2 {
		t.Errorf("got %v, %v", set, err)
	}
}

// A file with a mistake holds back nothing of the others, and keeps what it had.
func TestBrokenFileHoldsBackNoOther(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": doc("a", hello), "b.yaml": doc("b", hello) + "---\n" + doc("b2", hello)})
	file := func(name string) string { return filepath.Join(dir, name) }
	r := NewReader([]string{dir}, nil)
	want := func(services string, broken ...string) {
		t.Helper()
		set, err := r.Load(t.Context())
		var errs Errors
		errors.As(err, &errs)
		var files []string
		for _, list := range errs.ByFile() {
			files = append(files, filepath.Base(list[0].File))
		}
		if names(set) != services || !slices.Equal(files, broken) {
			t.Errorf("got %s, broken %v; want %s, broken %v: %v", names(set), files, services, broken, err)
		}
	}
	want("default/a default/b default/b2")
	put(t, file("b.yaml"), doc("b", "image: a/b, prot: 1, color: red")+"---\n"+doc("b3", hello))
	put(t, file("c.yaml"), doc("c", hello))
	want("default/a default/b default/b2 default/c", "b.yaml")
	// The services of a valid file win over those that a broken one has kept.
	put(t, file("c.yaml"), doc("c", hello)+"---\n"+doc("b2", "image: a/c, port: 81"))
	want("default/a default/b default/b2 default/c", "b.yaml")
	if set, _ := r.Load(t.Context()); set.Get("default/b2").Spec.Port != 81 {
		t.Error("b2 is the one of the broken file")
	}
	if err := os.Remove(file("b.yaml")); err != nil {
		t.Fatal(err)
	}
	want("default/a default/b2 default/c")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	want("default/a default/b2 default/c", filepath.Base(dir))
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	want("default/a default/b2 default/c")
	// A file that was never valid has nothing.
	fresh := NewReader([]string{file("c.yaml"), file("d.yaml")}, nil)
	put(t, file("d.yaml"), "{")
	if set, err := fresh.Load(t.Context()); names(set) != "default/b2 default/c" || err == nil {
		t.Errorf("got %s, %v", names(set), err)
	}
}

func TestLoadRefusesHugeFilesAndAliasBombs(t *testing.T) {
	dir := write(t, map[string]string{
		"big.yaml":  strings.Repeat("#", maxFileSize+1),
		"fits.yaml": doc("a", hello) + strings.Repeat("#", 1<<20),
	})
	if _, err := load(t, "", filepath.Join(dir, "big.yaml")); err == nil ||
		!strings.Contains(err.Error(), "big.yaml: is larger than 10 MiB: split it") {
		t.Errorf("got %v", err)
	}
	if _, err := load(t, "", filepath.Join(dir, "fits.yaml")); err != nil {
		t.Error(err)
	}
	bombs := map[string]string{
		"nested":   "a: &a [x,x,x,x,x,x,x,x,x,x]\n",
		"cycle":    "x: &x {labels: *x}\n",
		"in spec":  "x: &x\n  name: a\n  managedFields:\n  - fieldsV1: *x\n",
		"merge me": "m0: &m0 {a: b}\n",
	}
	for i := 'b'; i <= 'k'; i++ {
		aliases := strings.TrimSuffix(strings.Repeat("*"+string(i-1)+",", 10), ",")
		bombs["nested"] += fmt.Sprintf("%c: &%c [%s]\n", i, i, aliases)
	}
	for i := 1; i < 200; i++ {
		bombs["merge me"] += fmt.Sprintf("m%d: &m%d {<<: [*m%d, *m%d]}\n", i, i, i-1, i-1)
	}
	use := map[string]string{
		"nested":   "{managedFields: [{fieldsV1: {a: *k}}]}",
		"cycle":    "{managedFields: [{fieldsV1: *x}]}",
		"in spec":  "*x",
		"merge me": "{labels: *m199}",
	}
	for name, anchors := range bombs {
		text := "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\n" + anchors +
			"metadata: " + use[name] + "\nspec: {image: a/b, port: 80}\n"
		begin := time.Now()
		_, err := load(t, text, "-")
		if err == nil || !strings.Contains(err.Error(), "too many aliases, or an alias inside itself") {
			t.Errorf("%s: got %v", name, err)
		}
		if took := time.Since(begin); took > 20*time.Second { // milliseconds with the limit, forever without
			t.Errorf("%s: took %s", name, took)
		}
	}
}

// The test measures the CPU time of its own process, because other programs may keep the machine busy.
func TestLoadTakesLinearTimeForLargeMappings(t *testing.T) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	takes := func(n int) time.Duration {
		var labels strings.Builder
		for i := range n {
			fmt.Fprintf(&labels, "k%d: 1, k%d: 1,", i, i)
		}
		begin := used()
		_, err := load(t, strings.Replace(doc("a", hello), "name: a", "name: a, labels: {"+labels.String()+"}", 1), "-")
		var all Errors
		if !errors.As(err, &all) || len(all) != maxErrors {
			t.Errorf("got %d errors", len(all))
		}
		return used() - begin
	}
	small, large := takes(10_000), takes(100_000)
	t.Logf("10,000 labels: %v, 100,000: %v", small, large)
	if large > 40*small { // quadratic time would be 100 times longer
		t.Errorf("10,000 labels take %v, ten times as many take %v", small, large)
	}
}

func TestLoadReadsStdinOnce(t *testing.T) {
	r := NewReader([]string{"-", "-"}, strings.NewReader(doc("a", hello)))
	for range 2 { // the Reader keeps the text
		if set, err := r.Load(t.Context()); err != nil || names(set) != "default/a" {
			t.Fatalf("got %v, %v", names(set), err)
		}
	}
	if _, err := NewReader([]string{"-"}, nil).Load(t.Context()); err == nil ||
		err.Error() != "standard input: is not available: name a file" {
		t.Errorf("got %v", err)
	}
	// A standard input that never ends does not block the end of the program.
	ctx, cancel := context.WithCancel(t.Context())
	never, writer := io.Pipe()
	defer writer.Close()
	go func() {
		_, _ = writer.Write([]byte("apiVersion"))
		cancel()
	}()
	if _, err := NewReader([]string{"-"}, never).Load(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestDiffFindsAddedChangedAndRemovedServices(t *testing.T) {
	set := func(docs ...string) Set {
		s, err := load(t, strings.Join(docs, "---\n"), "-")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	old := set(doc("a", hello), doc("b", hello), doc("c", hello+", resources: {limits: {cpu: 1}}"), doc("e", hello))
	now := set(doc("b", hello+", idleTimeout: 5"),
		doc("c", hello+", targetPort: 80, resources: {limits: {cpu: 1000m}}"), doc("d", hello), doc("f", hello))
	added, changed, removed := Diff(old, now)
	if names(added) != "default/d default/f" || names(changed) != "default/b" || names(removed) != "default/a default/e" {
		t.Errorf("added %s, changed %s, removed %s", names(added), names(changed), names(removed))
	}
	if changed[0].Spec.IdleTimeout != 5 {
		t.Error("changed holds the old service")
	}
	if added, changed, removed := Diff(nil, old); len(added) != 4 || len(changed)+len(removed) != 0 {
		t.Error("compared with an empty set: not all services are added")
	}
}

// BenchmarkLoad10k loads one file with 10,000 services.
func BenchmarkLoad10k(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, `apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata:
  name: service-%d
spec:
  image: registry.example.com/app:v%d
  targetPort: 8080
  port: 80
  idleTimeout: 1800
  env:
    - name: LOG_LEVEL
      value: info
  resources: {limits: {cpu: 500m, memory: 64Mi}}
---
`, i, i)
	}
	file := filepath.Join(write(b, map[string]string{"all.yaml": text.String()}), "all.yaml")
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		set, err := NewReader([]string{file}, nil).Load(context.Background())
		if err != nil || len(set) != 10_000 {
			b.Fatal(len(set), err)
		}
	}
}
