// SPDX-License-Identifier: Apache-2.0

// Package deploy has no code. Its tests check what the chart renders to.
package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	release   = "wg"
	namespace = "elsewhere"
)

// component is the label of what a part of Wangell has.
const component = "app.kubernetes.io/component"

// helm renders the chart with additional arguments, and returns its standard output and standard error.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	args = append([]string{"template", release, "chart", "--namespace", namespace}, args...)
	cmd := exec.CommandContext(t.Context(), "../hack/helm.sh", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// rendered holds the decoded documents of one rendering.
type rendered struct {
	text       string
	daemon     appsv1.DaemonSet
	lazy       appsv1.DaemonSet // wangell-snapshotter
	classes    []nodev1.RuntimeClass
	envoy      appsv1.DaemonSet
	controller appsv1.Deployment
	uninstall  batchv1.Job
	caches     []appsv1.Deployment
	settings   []corev1.ConfigMap // of caches
	services   []corev1.Service
	claims     []corev1.PersistentVolumeClaim
	roles      []role
	bindings   []binding
	secrets    []corev1.Secret
	config     []corev1.ConfigMap
	released   []corev1.ConfigMap // addresses of deleted services
	dashboards []corev1.ConfigMap
	accounts   []corev1.ServiceAccount
	budgets    []policyv1.PodDisruptionBudget
	policies   []networkingv1.NetworkPolicy
	monitors   []podMonitor
	alerts     []alertRule
	crds       []apiextensionsv1.CustomResourceDefinition
	namespaces []corev1.Namespace
	apis       []corev1.Service     // of the API for people
	readers    []rbacv1.RoleBinding // of the cluster's authority of client certificates
	admission  []admissionv1.ValidatingAdmissionPolicy
	inForce    []admissionv1.ValidatingAdmissionPolicyBinding
	metas      []metav1.ObjectMeta
	kinds      []string
}

// role is a Role, or a ClusterRole if its namespace is empty.
type role struct {
	meta  metav1.ObjectMeta
	rules []rbacv1.PolicyRule
}

// binding is a RoleBinding, or a ClusterRoleBinding if its namespace is empty.
type binding struct {
	meta     metav1.ObjectMeta
	ref      rbacv1.RoleRef
	subjects []rbacv1.Subject
}

// ofAPI reports whether it says who may reach the API for people.
func (b binding) ofAPI() bool { return strings.HasSuffix(b.meta.Name, "-api") }

// alertRule is an alert of a PrometheusRule.
type alertRule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alertGroups are groups of alerts.
type alertGroups struct {
	Groups []struct {
		Name  string      `json:"name"`
		Rules []alertRule `json:"rules"`
	} `json:"groups"`
}

// podMonitor has the fields of the Prometheus operator's PodMonitor that the chart uses.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Interval string `json:"interval"`
			Honor    bool   `json:"honorLabels"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

func render(t *testing.T, args ...string) *rendered {
	t.Helper()
	out, errs, err := helm(t, args...)
	if err != nil {
		t.Fatalf("helm template %v: %v\n%s", args, err, errs)
	}
	return decode(t, out)
}

// decode reads documents strictly: an unknown field or kind fails the test.
func decode(t *testing.T, text string) *rendered {
	t.Helper()
	r := &rendered{text: text}
	for _, doc := range strings.Split("\n"+text, "\n---") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		kind := head.APIVersion + "/" + head.Kind
		if kind == "/" {
			continue // comments only
		}
		r.kinds = append(r.kinds, head.Kind)
		into := func(v any) {
			if err := yaml.UnmarshalStrict([]byte(doc), v); err != nil {
				t.Errorf("%s: %v in\n%s", kind, err, doc)
			}
		}
		add := func(m metav1.ObjectMeta) { r.metas = append(r.metas, m) }
		switch kind {
		case "apps/v1/DaemonSet":
			var v appsv1.DaemonSet
			into(&v)
			add(v.ObjectMeta)
			switch v.Labels[component] {
			case "lazy":
				r.lazy = v
			case "envoy":
				r.envoy = v
			default:
				r.daemon = v
			}
		case "node.k8s.io/v1/RuntimeClass":
			r.classes = append(r.classes, nodev1.RuntimeClass{})
			into(&r.classes[len(r.classes)-1])
		case "apps/v1/Deployment":
			var v appsv1.Deployment
			into(&v)
			if add(v.ObjectMeta); v.Labels[component] == "cache" {
				r.caches = append(r.caches, v)
			} else {
				r.controller = v
			}
		case "batch/v1/Job":
			into(&r.uninstall)
			add(r.uninstall.ObjectMeta)
		case "v1/Service":
			var v corev1.Service
			into(&v)
			if add(v.ObjectMeta); strings.HasSuffix(v.Name, "-api") {
				r.apis = append(r.apis, v)
			} else {
				r.services = append(r.services, v)
			}
		case "v1/PersistentVolumeClaim":
			r.claims = append(r.claims, corev1.PersistentVolumeClaim{})
			into(&r.claims[len(r.claims)-1])
			add(r.claims[len(r.claims)-1].ObjectMeta)
		case "rbac.authorization.k8s.io/v1/ClusterRole":
			var v rbacv1.ClusterRole
			into(&v)
			r.roles = append(r.roles, role{v.ObjectMeta, v.Rules})
		case "rbac.authorization.k8s.io/v1/Role":
			var v rbacv1.Role
			into(&v)
			r.roles = append(r.roles, role{v.ObjectMeta, v.Rules})
			add(v.ObjectMeta)
		case "rbac.authorization.k8s.io/v1/ClusterRoleBinding":
			var v rbacv1.ClusterRoleBinding
			into(&v)
			r.bindings = append(r.bindings, binding{v.ObjectMeta, v.RoleRef, v.Subjects})
		case "rbac.authorization.k8s.io/v1/RoleBinding":
			var v rbacv1.RoleBinding
			into(&v)
			if v.RoleRef.Name == clientCAReader {
				r.readers = append(r.readers, v)
				break
			}
			r.bindings = append(r.bindings, binding{v.ObjectMeta, v.RoleRef, v.Subjects})
			add(v.ObjectMeta)
		case "v1/Secret":
			r.secrets = append(r.secrets, corev1.Secret{})
			into(&r.secrets[len(r.secrets)-1])
			add(r.secrets[len(r.secrets)-1].ObjectMeta)
		case "v1/ConfigMap":
			var v corev1.ConfigMap
			into(&v)
			add(v.ObjectMeta)
			switch {
			case strings.HasSuffix(v.Name, "-dashboard"):
				r.dashboards = append(r.dashboards, v)
			case v.Labels[component] == "cache":
				r.settings = append(r.settings, v)
			case strings.HasSuffix(v.Name, "-released"):
				r.released = append(r.released, v)
			default:
				r.config = append(r.config, v)
			}
		case "v1/ServiceAccount":
			r.accounts = append(r.accounts, corev1.ServiceAccount{})
			into(&r.accounts[len(r.accounts)-1])
			add(r.accounts[len(r.accounts)-1].ObjectMeta)
		case "policy/v1/PodDisruptionBudget":
			r.budgets = append(r.budgets, policyv1.PodDisruptionBudget{})
			into(&r.budgets[len(r.budgets)-1])
			add(r.budgets[len(r.budgets)-1].ObjectMeta)
		case "networking.k8s.io/v1/NetworkPolicy":
			r.policies = append(r.policies, networkingv1.NetworkPolicy{})
			into(&r.policies[len(r.policies)-1])
			add(r.policies[len(r.policies)-1].ObjectMeta)
		case "monitoring.coreos.com/v1/PodMonitor":
			r.monitors = append(r.monitors, podMonitor{})
			into(&r.monitors[len(r.monitors)-1])
			add(r.monitors[len(r.monitors)-1].ObjectMeta)
		case "monitoring.coreos.com/v1/PrometheusRule":
			var v struct {
				metav1.TypeMeta   `json:",inline"`
				metav1.ObjectMeta `json:"metadata"`
				Spec              alertGroups `json:"spec"`
			}
			into(&v)
			add(v.ObjectMeta)
			r.alerts = append(r.alerts, v.Spec.Groups[0].Rules...)
		case "apiextensions.k8s.io/v1/CustomResourceDefinition":
			r.crds = append(r.crds, apiextensionsv1.CustomResourceDefinition{})
			into(&r.crds[len(r.crds)-1])
		case "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":
			r.admission = append(r.admission, admissionv1.ValidatingAdmissionPolicy{})
			into(&r.admission[len(r.admission)-1])
		case "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding":
			r.inForce = append(r.inForce, admissionv1.ValidatingAdmissionPolicyBinding{})
			into(&r.inForce[len(r.inForce)-1])
		case "v1/Namespace":
			r.namespaces = append(r.namespaces, corev1.Namespace{})
			into(&r.namespaces[len(r.namespaces)-1])
		default:
			t.Errorf("unknown kind %s: add it to this test", kind)
		}
	}
	return r
}

// clientCAReader is a Role of Kubernetes.
const clientCAReader = "extension-apiserver-authentication-reader"

const nodeExpression = "daemon.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution." +
	"nodeSelectorTerms[0].matchExpressions[0]"

// everything enables what is off by default.
var everything = []string{
	"--include-crds",
	"--set", "podMonitor.enabled=true,podMonitor.labels.team=x",
	"--set", "alerts.enabled=true,alerts.labels.team=x,alerts.runbooks=https://wiki.example/operations",
	"--set", "dashboard.enabled=true,dashboard.annotations.folder=x",
	"--set", "networkPolicy.enabled=true,networkPolicy.nodeCIDRs={192.0.2.0/24}",
	"--set", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b",
	"--set", "imagePullSecrets[0].name=pull,daemon.interfaces={eth0,eth1}",
	"--set", "daemon.podLabels.a=b,daemon.podAnnotations.a=b,controller.podLabels.a=b,controller.podAnnotations.a=b",
	"--set", "lazy.enabled=true,lazy.registrySecret=registries,lazy.podLabels.a=b,lazy.podAnnotations.a=b",
	"--set", "daemon.peers.enabled=true,daemon.peers.rate=1000000,cache.enabled=true",
	"--set", "api.users[0].kind=Group,api.users[0].name=developers,api.users[0].apiGroup=rbac.authorization.k8s.io",
	"--set", "requests.enabled=true,requests.threads=2,requests.podLabels.a=b,requests.podAnnotations.a=b",
	"--set", "uninstall.hook=Always",
	"--set", "traces.endpoint=http://collector.example:4317",
	"--set", "sizes.flowsPerSource=100,sizes.flowsPerService=200",
	"--set", "daemon.extraArgs={--log-level=debug},controller.extraArgs={--log-level=debug}",
	"--set", "daemon.extraEnv[0].name=A,daemon.extraEnv[0].value=b",
	"--set", "controller.extraEnv[0].name=A,controller.extraEnv[0].value=b",
	"--set", nodeExpression + ".key=a," + nodeExpression + ".operator=Exists",
	"--set", "controller.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution=null",
	"--set", "controller.tolerations[0].operator=Exists",
}

// variants are the renderings to which every rule applies.
func variants(t *testing.T) map[string]*rendered {
	t.Helper()
	plain, err := os.ReadFile("manifests/wangell.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*rendered{
		"defaults":        render(t),
		"everything":      render(t, everything...),
		"plain manifests": decode(t, string(plain)),
	}
}
