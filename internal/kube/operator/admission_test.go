// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
)

// admission installs the chart's admission policy for the rest of the test, and returns once it is in force.
func (w *world) admission(settings ...string) {
	w.t.Helper()
	args := []string{"template", w.namespace, "../../../deploy/chart", "--namespace", w.namespace,
		"--show-only", "templates/admission.yaml"}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	cmd := exec.CommandContext(w.t.Context(), "../../../hack/helm.sh", args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("render the policy: %v\n%s", err, errs.String())
	}
	for doc := range strings.SplitSeq("\n"+string(out), "\n---") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			w.t.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		// It must not judge the services of other tests.
		at := []string{"spec", "matchResources", "namespaceSelector", "matchLabels", corev1.LabelMetadataName}
		if o.GetKind() == "ValidatingAdmissionPolicyBinding" {
			if err := unstructured.SetNestedField(o.Object, w.namespace, at...); err != nil {
				w.t.Fatal(err)
			}
		}
		w.create(o)
		w.t.Cleanup(func() {
			if err := w.client.Delete(context.Background(), o); err != nil {
				w.t.Error(err)
			}
		})
	}
	stranger := w.user("stranger", servicesOnly)
	w.until("the policy is in force", func() bool {
		err := stranger.Create(context.Background(), w.probe("in-force", nil), client.DryRunAll)
		if err != nil && !apierrors.IsForbidden(err) {
			w.t.Fatal(err)
		}
		return err != nil
	})
}

// servicesOnly are all rights on WangellServices and no other.
var servicesOnly = rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: []string{"wangellservices"},
	Verbs: []string{"get", "list", "create", "update", "patch", "delete"}}

// core is a right on objects of the core group.
func core(verb, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb},
		ResourceNames: names}
}

// user returns a client of a user that has only these rights, in the namespace. They are in force.
func (w *world) user(name string, rules ...rbacv1.PolicyRule) client.Client {
	w.t.Helper()
	name = w.namespace + "-" + name
	w.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Rules: rules})
	w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}})
	for _, rule := range rules {
		w.until(fmt.Sprintf("%s has the rights %+v", name, rule), func() bool { return w.hasRights(name, rule) })
	}
	u, err := apiServer.env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	config := u.Config()
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: w.client.Scheme()})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// hasRights reports whether the API server grants a rule to a user: it learns of new roles a moment after they were
// created.
func (w *world) hasRights(user string, rule rbacv1.PolicyRule) bool {
	w.t.Helper()
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					r := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
						User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
							Namespace: w.namespace, Group: group, Resource: resource, Verb: verb, Name: name},
					}}
					if err := w.client.Create(w.t.Context(), r); err != nil {
						w.t.Fatal(err)
					}
					if !r.Status.Allowed {
						return false
					}
				}
			}
		}
	}
	return true
}

// probe returns a service that runs on Kubernetes, changed by f.
func (w *world) probe(name string, f func(*v1alpha1.WangellServiceSpec)) *v1alpha1.WangellService {
	s := &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       v1alpha1.WangellServiceSpec{Image: "registry.example/app:1", Port: 80, TargetPort: 8080},
	}
	if f != nil {
		f(&s.Spec)
	}
	return s
}

// judged creates a service as a user, without effect. It fails unless the service is accepted or, with a text, refused
// as forbidden with it.
func (w *world) judged(as client.Client, what, refusal string, f func(*v1alpha1.WangellServiceSpec)) {
	w.t.Helper()
	err := as.Create(context.Background(), w.probe("probe", f), client.DryRunAll)
	w.verdict(what, refusal, err)
}

func (w *world) verdict(what, refusal string, err error) {
	w.t.Helper()
	switch {
	case refusal == "" && err != nil:
		w.t.Errorf("%s: refused: %v", what, err)
	case refusal != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refusal)):
		w.t.Errorf("%s: %v, want a refusal with %q", what, err, refusal)
	}
}

// template puts a pod spec into a service.
func template(f func(*corev1.PodSpec)) func(*v1alpha1.WangellServiceSpec) {
	return func(s *v1alpha1.WangellServiceSpec) {
		s.Image = ""
		s.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "registry.example/app:1"}}}}
		f(&s.Template.Spec)
	}
}

// A tenant with rights on WangellServices alone gets no pod by them, and may use those that others wrote.
func TestTenantWithRightsOnServicesAloneGetsNoPod(t *testing.T) {
	w := newWorld(t, nil)
	w.create(w.probe("others", nil))
	w.admission()
	tenant := w.user("tenant", servicesOnly)
	const refusal = "may not create pods in namespace"
	w.judged(tenant, "an image", refusal, nil)
	w.judged(tenant, "a template", refusal, template(func(*corev1.PodSpec) {}))
	w.judged(tenant, "hostPath", refusal, template(func(p *corev1.PodSpec) { mountNode(p) }))
	w.judged(tenant, "another service account", refusal, func(s *v1alpha1.WangellServiceSpec) {
		s.ServiceAccountName = "admin"
	})
	w.judged(tenant, "revisions of others", "", func(s *v1alpha1.WangellServiceSpec) {
		s.Image, s.Balancing = "", &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
		s.Traffic = []v1alpha1.Revision{{Revision: "others", Percent: 100}}
	})

	change := func(what, refusal string, f func(*v1alpha1.WangellService)) {
		t.Helper()
		var s v1alpha1.WangellService
		if err := tenant.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "others"}, &s); err != nil {
			t.Fatal(err)
		}
		f(&s)
		w.verdict(what, refusal, tenant.Update(t.Context(), &s))
	}
	change("another image", refusal, func(s *v1alpha1.WangellService) { s.Spec.Image = "registry.example/mine:1" })
	change("a command", refusal, func(s *v1alpha1.WangellService) { s.Spec.Command = []string{"sh"} })
	change("a template", refusal, func(s *v1alpha1.WangellService) { template(mountNode)(&s.Spec) })
	change("when it sleeps", "", func(s *v1alpha1.WangellService) { s.Spec.IdleTimeout = 5 })
	change("its pods", "", func(s *v1alpha1.WangellService) { s.Spec.MaxReplicas, s.Spec.Replicas = 3, new(int32(1)) })
	change("a label", "", func(s *v1alpha1.WangellService) { s.Labels = map[string]string{"a": "b"} })
}

func mountNode(p *corev1.PodSpec) {
	p.Volumes = append(p.Volumes, corev1.Volume{Name: "node",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
}

// Whoever may create pods names only what they may read or be. Each field of a pod that names a Secret, a ConfigMap or
// an account is tried: one that Kubernetes adds fails the test until the policy knows it.
func TestTenantNamesOnlyWhatTheyMayRead(t *testing.T) {
	w := newWorld(t, nil)
	w.admission()
	tenant := w.user("tenant", servicesOnly, core("create", "pods"), core("get", "secrets", "own"),
		core("get", "configmaps", "own"), core("use", "serviceaccounts", "own"))
	w.judged(tenant, "nothing", "", nil)
	seen := map[string]int{}
	for _, name := range []string{"own", "others"} {
		for r := range references(reflect.TypeFor[corev1.PodSpec](), name) {
			refusal := ""
			if name == "others" {
				refusal = r.kind + " others"
			}
			seen[r.kind]++
			w.judged(tenant, fmt.Sprintf("%s at %s", name, r.path), refusal, template(func(p *corev1.PodSpec) {
				r.set(reflect.ValueOf(p).Elem())
			}))
		}
	}
	if seen["Secret"] < 2*14 || seen["ConfigMap"] < 2*6 || seen["account"] != 2*2 {
		t.Errorf("the fields of a pod are not found: %v", seen)
	}
	w.judged(tenant, "an account beside an image", "service account others", func(s *v1alpha1.WangellServiceSpec) {
		s.ServiceAccountName = "others"
	})
	from := func(names ...string) (list []corev1.EnvFromSource) {
		for _, n := range names {
			list = append(list, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: n}}})
		}
		return list
	}
	for what, f := range map[string]func(*v1alpha1.WangellServiceSpec, []corev1.EnvFromSource){
		"envFrom":        func(s *v1alpha1.WangellServiceSpec, e []corev1.EnvFromSource) { s.EnvFrom = e },
		"containers":     func(s *v1alpha1.WangellServiceSpec, e []corev1.EnvFromSource) { s.Containers = other(e) },
		"initContainers": func(s *v1alpha1.WangellServiceSpec, e []corev1.EnvFromSource) { s.InitContainers = other(e) },
	} {
		for refusal, names := range map[string][]string{
			"":              {"own", "own", "own", "own", "own", "own", "own", "own"},
			"Secret others": {"own", "own", "others"},
			"more than 6":   {"own", "own", "own", "own", "own", "own", "own", "1", "2", "3", "4", "5", "6"},
		} {
			if refusal == "more than 6" { // each of them is refused, too
				refusal = "Secret"
			}
			w.judged(tenant, what, refusal, func(s *v1alpha1.WangellServiceSpec) { f(s, from(names...)) })
		}
	}
	reader := w.user("reader", servicesOnly, core("create", "pods"), core("get", "secrets"))
	many := from("1", "2", "3", "4", "5", "6", "7", "8", "9")
	w.judged(reader, "many secrets", "", func(s *v1alpha1.WangellServiceSpec) { s.EnvFrom = many })
	named := w.user("named", servicesOnly, core("create", "pods"),
		core("get", "secrets", "1", "2", "3", "4", "5", "6", "7", "8", "9"))
	w.judged(named, "six secrets", "", func(s *v1alpha1.WangellServiceSpec) { s.EnvFrom = many[:6] })
	w.judged(named, "seven secrets", "more than 6 Secrets", func(s *v1alpha1.WangellServiceSpec) { s.EnvFrom = many[:7] })
}

func other(from []corev1.EnvFromSource) []v1alpha1.Container {
	return []v1alpha1.Container{{Name: "other", Image: "registry.example/other:1", EnvFrom: from}}
}

// Without the check of references, the right to create pods is enough, as it is for pods.
func TestReferencesNeedNotBeChecked(t *testing.T) {
	w := newWorld(t, nil)
	w.admission("admission.references=false")
	tenant := w.user("tenant", servicesOnly, core("create", "pods"))
	w.judged(tenant, "an account", "", func(s *v1alpha1.WangellServiceSpec) { s.ServiceAccountName = "others" })
	w.judged(w.user("other", servicesOnly), "no pods", "may not create pods", nil)
}

// Users with the role edit of Kubernetes notice nothing. No controller aggregates it here, so its parts are bound.
func TestUsersWithRolesOfKubernetesWriteServices(t *testing.T) {
	w := newWorld(t, nil)
	w.admission()
	editor := w.user("editor", servicesOnly)
	for _, part := range []string{"edit", "view"} {
		w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "editor-" + part},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-" + part},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName,
				Name: w.namespace + "-editor"}}})
	}
	w.until("the roles are in force", func() bool {
		return editor.Create(t.Context(), w.probe("probe", nil), client.DryRunAll) == nil
	})
	w.judged(editor, "all kinds of references", "", template(func(p *corev1.PodSpec) {
		p.ServiceAccountName = "any"
		p.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "any"}}
		p.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "any"}}}}
		mountNode(p)
	}))
}

// The standard that a namespace enforces counts for services as well, whomever the API server exempts.
func TestPodsReachIntoTheirNodeByTheLevelOfTheNamespace(t *testing.T) {
	w := newWorld(t, nil)
	w.admission()
	tenant := w.user("tenant", servicesOnly, core("create", "pods"))
	yes := true
	reaches := map[string]func(*v1alpha1.WangellServiceSpec){
		"hostPath": template(mountNode),
		"hostPID":  template(func(p *corev1.PodSpec) { p.HostPID = true }),
		"hostIPC":  template(func(p *corev1.PodSpec) { p.HostIPC = true }),
		"container": template(func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}),
		"init": template(func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Name: "init", Image: "registry.example/init:1",
				SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
		}),
		"volumes": func(s *v1alpha1.WangellServiceSpec) {
			s.Volumes = []v1alpha1.Volume{{Volume: corev1.Volume{Name: "node",
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}}
		},
		"spec": func(s *v1alpha1.WangellServiceSpec) { s.SecurityContext = &corev1.SecurityContext{Privileged: &yes} },
	}
	for _, level := range []string{"", "privileged", "baseline", "restricted"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
		if level != "" {
			if err := w.client.Patch(t.Context(), ns, client.RawPatch("application/merge-patch+json", patch)); err != nil {
				t.Fatal(err)
			}
		}
		refuses, refusal := level == "baseline" || level == "restricted", ""
		if refuses {
			refusal = "Pod Security Standard " + level
		}
		w.until("the level is "+level, func() bool { // the API server learns of it a little later
			err := tenant.Create(t.Context(), w.probe("probe", reaches["hostPath"]), client.DryRunAll)
			return (err != nil) == refuses && (err == nil || strings.Contains(err.Error(), refusal))
		})
		for what, f := range reaches {
			w.judged(tenant, what+" in a namespace of level "+level, refusal, f)
		}
		w.judged(tenant, "a plain pod in a namespace of level "+level, "", nil)
	}
}

// Fields that the policy takes for harmless make no pod.
func TestPolicyLooksAtEveryFieldThatMakesAPod(t *testing.T) {
	w := newWorld(t, nil)
	w.admission()
	var policy unstructured.Unstructured
	policy.SetAPIVersion("admissionregistration.k8s.io/v1")
	policy.SetKind("ValidatingAdmissionPolicy")
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: w.namespace + "-authors"}, &policy); err != nil {
		t.Fatal(err)
	}
	variables, _, _ := unstructured.NestedSlice(policy.Object, "spec", "variables")
	i := slices.IndexFunc(variables, func(v any) bool { return v.(map[string]any)["name"] == "other" })
	text := variables[i].(map[string]any)["expression"].(string)
	for _, name := range v1alpha1.PodFields() {
		if strings.Contains(text, "'"+name+"'") {
			t.Errorf("spec.%s makes pods, and the policy does not look at it", name)
		}
	}
}

// reference is a field of a type that names an object.
type reference struct {
	path, kind string
	set        func(reflect.Value) // sets it in a value of the type, with what the field needs
}

// references yields each field of a type that names a Secret, a ConfigMap or a service account.
func references(t reflect.Type, name string) func(func(reference) bool) {
	kindOf := func(field string, t reflect.Type) string {
		switch {
		case t == reflect.TypeFor[corev1.SecretKeySelector](), t == reflect.TypeFor[corev1.SecretEnvSource](),
			t == reflect.TypeFor[corev1.SecretProjection](), t == reflect.TypeFor[corev1.SecretReference](),
			t == reflect.TypeFor[corev1.LocalObjectReference](), field == "SecretName":
			return "Secret"
		case t == reflect.TypeFor[corev1.ConfigMapKeySelector](), t == reflect.TypeFor[corev1.ConfigMapEnvSource](),
			t == reflect.TypeFor[corev1.ConfigMapProjection](), t == reflect.TypeFor[corev1.ConfigMapVolumeSource]():
			return "ConfigMap"
		case field == "ServiceAccountName", field == "DeprecatedServiceAccount":
			return "account"
		}
		return ""
	}
	var walk func(t reflect.Type, path string, set func(func(reflect.Value)) func(reflect.Value),
		yield func(reference) bool) bool
	walk = func(t reflect.Type, path string, set func(func(reflect.Value)) func(reflect.Value),
		yield func(reference) bool) bool {
		switch t.Kind() {
		case reflect.Pointer:
			return walk(t.Elem(), path, func(f func(reflect.Value)) func(reflect.Value) {
				return set(func(v reflect.Value) {
					if v.IsNil() {
						v.Set(reflect.New(t.Elem()))
					}
					f(v.Elem())
				})
			}, yield)
		case reflect.Slice:
			return walk(t.Elem(), path+"[]", func(f func(reflect.Value)) func(reflect.Value) {
				return set(func(v reflect.Value) {
					if v.Len() == 0 {
						v.Set(reflect.MakeSlice(t, 1, 1))
					}
					f(v.Index(0))
				})
			}, yield)
		case reflect.Struct:
			for i := range t.NumField() {
				f := t.Field(i)
				child := func(g func(reflect.Value)) func(reflect.Value) {
					return set(func(v reflect.Value) { complete(v); g(v.Field(i)) })
				}
				base := f.Type
				if base.Kind() == reflect.Pointer {
					base = base.Elem()
				}
				element := base
				if base.Kind() == reflect.Slice {
					element = base.Elem()
				}
				if kind := kindOf(f.Name, element); kind != "" && !f.Anonymous {
					final := child(func(v reflect.Value) { named(v, name) })
					if !yield(reference{path + "." + f.Name, kind, final}) {
						return false
					}
					continue
				}
				if !walk(f.Type, path+"."+f.Name, child, yield) {
					return false
				}
			}
		}
		return true
	}
	return func(yield func(reference) bool) {
		walk(t, "", func(f func(reflect.Value)) func(reflect.Value) { return f }, yield)
	}
}

// named gives a field that refers to an object the object's name.
func named(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		named(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		named(v.Index(0), name)
	case reflect.Struct:
		v.FieldByName("Name").SetString(name)
	}
}

// complete gives a structure on the way to a reference the fields without which the definition refuses it.
func complete(v reflect.Value) {
	if f := v.FieldByName("CephMonitors"); f.IsValid() { // of RBD
		f.Set(reflect.ValueOf([]string{"x"}))
	}
	if f := v.FieldByName("Monitors"); f.IsValid() { // of CephFS
		f.Set(reflect.ValueOf([]string{"x"}))
	}
	for _, field := range []string{"Name", "Image"} {
		if f := v.FieldByName(field); f.IsValid() && f.Kind() == reflect.String && f.String() == "" {
			f.SetString("x")
		}
	}
}
