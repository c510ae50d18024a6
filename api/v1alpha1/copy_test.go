// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"wangell.loutres.me/api/v1alpha1"
)

// fill sets every field of v, and one item of every list and map, to a value other than zero.
func fill(v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[resource.Quantity]():
		v.Set(reflect.ValueOf(resource.MustParse("64Mi")))
		return
	case reflect.TypeFor[metav1.Time]():
		v.Set(reflect.ValueOf(metav1.NewTime(time.Unix(1731774554, 0))))
		return
	case reflect.TypeFor[intstr.IntOrString]():
		v.Set(reflect.ValueOf(intstr.FromInt32(7)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8:
		v.SetUint('7') // FieldsV1 holds JSON text
	default:
		panic(v.Type().String())
	}
}

// memory collects the addresses of everything that v points to.
func memory(v reflect.Value, path string, found map[uintptr]string) {
	switch v.Type() {
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[metav1.Time]():
		return // copies share memory that is never written
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		found[v.Pointer()] = path
	}
	switch v.Kind() {
	case reflect.Pointer:
		memory(v.Elem(), path, found)
	case reflect.Struct:
		for i := range v.NumField() {
			memory(v.Field(i), path+"."+v.Type().Field(i).Name, found)
		}
	case reflect.Slice:
		memory(v.Index(0), path+"[0]", found)
	case reflect.Map:
		memory(v.MapIndex(v.MapKeys()[0]), path+"[key]", found)
	}
}

func TestDeepCopySharesNothing(t *testing.T) {
	s := new(v1alpha1.WangellService)
	fill(reflect.ValueOf(s).Elem())
	c := s.DeepCopy()
	if !equality.Semantic.DeepEqual(s, c) {
		t.Fatal("the copy is different")
	}
	mine, its := map[uintptr]string{}, map[uintptr]string{}
	memory(reflect.ValueOf(s), "", mine)
	memory(reflect.ValueOf(c), "", its)
	if len(mine) < 50 || len(mine) != len(its) {
		t.Fatalf("%d and %d addresses: the test sees too few", len(mine), len(its))
	}
	for at, path := range its {
		if _, shared := mine[at]; shared {
			t.Errorf("%s is shared", path)
		}
	}
	if (*v1alpha1.WangellService)(nil).DeepCopy() != nil || (*v1alpha1.WangellService)(nil).DeepCopyObject() != nil {
		t.Error("a copy of nil is not nil")
	}
}

// The test changes one field of the spec after the other. It fails for a new field until the table says whether a
// change of it needs a new pod.
func TestHashIsStable(t *testing.T) {
	// A constant, because another value would restart every pod in an upgrade of Wangell.
	full := `{image: a/b:c, targetPort: 8080, command: [a], args: [b], workingDir: /c, env: [{name: d, value: e}],
		resources: {limits: {cpu: 500m, memory: 64Mi}},
		volumes: [{name: f, hostPath: {path: /g}}, {name: h, emptyDir: {sizeLimit: 1Mi}}],
		volumeMounts: [{name: f, mountPath: /i, readOnly: true}], securityContext: {runAsUser: 5}}`
	if got, want := v1alpha1.Hash(&service(t, full).Spec), "d8b7d9d5393032be"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := v1alpha1.Hash(&service(t, "{}").Spec), "5f082deaad59fd0b"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	defaulted := service(t, "{}")
	v1alpha1.Default(defaulted)
	same := [][2]string{
		{`{}`, `{command: [], env: [], resources: {}, volumes: [], securityContext: {}}`},
		{`{}`, `{targetPort: 80}`},
		{`resources: {limits: {cpu: 1}}`, `resources: {limits: {cpu: 1000m}}`},
		{`containers: [{name: a, image: b, resources: {limits: {cpu: 1}}}]`,
			`containers: [{name: a, image: b, imagePullPolicy: Always, resources: {limits: {cpu: 1000m}}}]`},
		{`resources: {limits: {cpu: 0.5}}`, `resources: {limits: {cpu: 500m}}`},
		{`resources: {limits: {memory: 1Gi}}`, `resources: {limits: {memory: "1073741824"}}`},
		{`resources: {limits: {memory: 64Gi}}`, `resources: {limits: {memory: 65536Mi}}`},
		{`volumes: [{name: a, emptyDir: {sizeLimit: 1Mi}}]`, `volumes: [{name: a, emptyDir: {sizeLimit: 1024Ki}}]`},
	}
	for _, pair := range same {
		if a, b := v1alpha1.Hash(&service(t, pair[0]).Spec), v1alpha1.Hash(&service(t, pair[1]).Spec); a != b {
			t.Errorf("%s and %s: %s and %s", pair[0], pair[1], a, b)
		}
	}
	if v1alpha1.Hash(&defaulted.Spec) != v1alpha1.Hash(&service(t, "{}").Spec) {
		t.Error("Default changes the hash")
	}
	large := service(t, `resources: {limits: {memory: 64Gi}}`)
	larger := service(t, `resources: {limits: {memory: 65Gi}}`)
	if v1alpha1.Hash(&large.Spec) == v1alpha1.Hash(&larger.Spec) {
		t.Error("large quantities have the same hash")
	}
	spec := service(t, `resources: {limits: {cpu: 1000m}}`).Spec
	before := spec.DeepCopy()
	v1alpha1.Hash(&spec)
	if !reflect.DeepEqual(&spec, before) {
		t.Error("Hash changed the spec")
	}
}
