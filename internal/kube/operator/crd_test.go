// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/machine/manifest"
)

// design is a manifest that every version accepts.
const design = `apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: serverless-example, namespace: default}
spec:
  idleTimeout: 1800            # seconds without traffic before the service sleeps
  image: registry.loutres.me/helloworld-go:latest
  targetPort: 8080
  port: 80
status:
  latestRequest: "2024-11-16T16:29:14Z"
  loadBalancerIP: 10.46.100.105
  replicas: 0
`

// send creates an object from a document. The API server refuses unknown fields.
func (w *world) send(text string) (*v1alpha1.WangellService, error) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		w.t.Fatal(err)
	}
	o.SetNamespace(w.namespace)
	if err := w.client.Create(context.Background(), o,
		&client.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		return nil, err
	}
	return w.service(o.GetName()), nil
}

// The API server and `wangell up` apply the same defaults to a manifest.
func TestDefaultsOfServerAndCommandAreEqual(t *testing.T) {
	w := newWorld(t, nil)
	got, err := w.send(design)
	if err != nil {
		t.Fatal(err)
	}
	set, err := manifest.NewReader([]string{"-"}, strings.NewReader(design)).Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, full := range []bool{false, true} {
		if full {
			text := strings.Replace(design, "  port: 80\n", "  port: 80\n  scaling: {target: 5}\n  balancing: {}\n", 1)
			text = strings.Replace(text, "serverless-example", "full", 1)
			if got, err = w.send(text); err != nil {
				t.Fatal(err)
			}
			if set, err = manifest.NewReader([]string{"-"}, strings.NewReader(text)).Load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// The schema's defaults are among those of Default: what it fills in, Default leaves alone.
		byServer := got.DeepCopy()
		v1alpha1.Default(byServer)
		if !equality.Semantic.DeepEqual(byServer.Spec, set[0].Spec) {
			t.Errorf("by the API server %+v\nby the reader %+v", byServer.Spec, set[0].Spec)
		}
		if got.Spec.IdleTimeout != 1800 || got.Spec.WakeTimeout != 60 || got.Spec.TerminationGracePeriodSeconds != nil ||
			*byServer.Spec.TerminationGracePeriodSeconds != 30 || got.Spec.MaxParked != 1024 {
			t.Errorf("the API server's defaults: %+v", got.Spec)
		}
	}
}

// header begins a manifest of a WangellService.
const header = "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\n"

// The schema refuses manifests that cannot work, and says what to change.
func TestSchemaRefusesWhatCannotWork(t *testing.T) {
	w := newWorld(t, nil)
	n := 0
	for _, c := range []struct{ spec, want string }{
		{`{image: a/b, port: 80}`, ""},
		{`{image: a/b, port: 80, replicas: 0, minReplicas: 2, maxReplicas: 2, sessionAffinity: ClientIP, ` +
			`address: 10.46.100.5}`,
			""},
		{`{port: 80, template: {metadata: {labels: {a: b}}, spec: {nodeSelector: {c: d}, ` +
			`containers: [{name: e, image: f, ports: [{containerPort: 5}]}]}}}`,
			""},
		{`{image: a/b, port: 80, volumes: [{name: a, secret: {secretName: b}}], env: [{name: A, ` +
			`valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}`,
			""},
		{`{port: 80, traffic: [{revision: a, percent: 90}, {revision: b, percent: 10, tag: c}], sticky: {cookie: c}}`, ""},
		{`{port: 80, traffic: [{revision: a, percent: 90}, {revision: b}]}`, "percentages of traffic must add up to 100"},
		{`{port: 80, traffic: [{revision: a, percent: 110}, {revision: b, percent: -10}]}`, "want a percentage from 0"},
		{`{port: 80, traffic: [{revision: a, percent: 50}, {revision: a, percent: 50}]}`, "Duplicate value"},
		{`{port: 80, traffic: [{revision: a, percent: 100, tag: The}]}`, "write tag: canary"},
		{`{port: 80, image: a/b, traffic: [{revision: a, percent: 100}]}`, "cannot be set beside traffic"},
		{`{port: 80, traffic: [{revision: a, percent: 100}], balancing: {level: Connection}}`, "traffic needs balancing"},
		{`{port: 80, image: a/b, sticky: {cookie: c}}`, "sticky needs traffic"},
		{`{port: 80, traffic: [{revision: a, percent: 100}], sticky: {}}`, "want header or cookie"},
		{`{port: 80}`, "write which image to run"},
		{`{image: a/b}`, "write the port that clients use"},
		{`{image: a/b, ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443}]}`, ""},
		{`{image: a/b, ports: [{name: http, port: 80, targetPort: web}]}`, ""}, // the operator refuses it
		{`{image: a/b, port: 80, ports: [{name: http, port: 80}]}`, "cannot be set beside ports"},
		{`{image: a/b, ports: [{name: http, port: 80}], hostPort: 8080}`, "cannot be set beside ports"},
		{`{image: a/b, ports: []}`, "should have at least 1 items"},
		{`{image: a/b, ports: [{name: a, port: 80}, {name: b, port: 80}]}`, "two ports have the same number"},
		{`{image: a/b, ports: [{name: a, port: 80}, {name: a, port: 81}]}`, "Duplicate value"},
		{`{image: a/b, ports: [{name: "80", port: 80}]}`, "want a port name such as http"},
		{`{image: a/b, ports: [{name: a, port: 80, targetPort: 0}]}`, "want a port from 1 to 65535"},
		{`{image: a/b, ports: [{name: a, port: 80, protocol: UDP}]}`, "Unsupported value"},
		{`{image: "", port: 80}`, "spec.image"},
		{`{image: a/b, port: 0}`, "want a port from 1 to 65535: write port: 80, for example"},
		{`{image: a/b, port: 70000}`, "want a port from 1 to 65535"},
		{`{image: a/b, port: 80, targetPort: -1}`, "write targetPort: 8080"},
		{`{image: a/b, port: 80, idleTimeout: 0}`, "write idleTimeout: 300"},
		{`{image: a/b, port: 80, maxReplicas: 33}`, "want a number from 1 to 32"},
		{`{image: a/b, port: 80, minReplicas: 3, maxReplicas: 2}`,
			"maxReplicas is less than minReplicas: raise maxReplicas or lower minReplicas"},
		{`{image: a/b, port: 80, minReplicas: 3}`, "write maxReplicas as well"},
		{`{image: a/b, port: 80, address: "::1"}`, "want an IPv4 address that clients can use"},
		{`{image: a/b, port: 80, address: 127.0.0.1}`, "want an IPv4 address that clients can use"},
		{`{image: a/b, port: 80, address: 10.46.100}`, "want an IPv4 address that clients can use"},
		{`{image: a/b, port: 80, imagePullPolicy: Sometimes}`, `supported values: "IfNotPresent", "Always", "Never"`},
		{`{image: a/b, port: 80, scaling: {}}`, "spec.scaling.target: Required value"},
		{`{image: a/b, port: 80, scaling: {target: 5, metric: qps}}`, "spec.scaling.metric"},
		{`{image: a/b, port: 80, scaling: {target: 5, metric: requests}}`,
			"scaling by requests or concurrency needs requests to be counted: write balancing: {level: Request}"},
		{`{image: a/b, port: 80, scaling: {target: 5, metric: concurrency}, balancing: {level: Request, protocol: TCP}}`,
			"with a protocol other than TCP"},
		{`{image: a/b, port: 80, scaling: {target: 5, metric: concurrency}, balancing: {level: Request}}`, ""},
		{`{image: a/b, port: 80, appProtocol: h2c, service: {annotations: {a: b}, labels: {c: d}, loadBalancerClass: e}}`,
			""},
		{`{image: a/b, port: 80, service: {type: NodePort}}`, `supported values: "LoadBalancer", "ClusterIP"`},
		{`{image: a/b, port: 80, service: {type: ClusterIP, loadBalancerClass: a}}`,
			"loadBalancerClass needs type: LoadBalancer"},
		{`{image: a/b, port: 80, loadBalancerClass: a, service: {type: ClusterIP}}`,
			"loadBalancerClass needs service.type: LoadBalancer"},
		{`{image: a/b, port: 80, loadBalancerClass: a, service: {loadBalancerClass: b}}`,
			"loadBalancerClass and service.loadBalancerClass differ"},
		{`{image: a/b, port: 80, prot: 81}`, `unknown field "spec.prot"`},
		{`{image: a/b, port: 80, template: {spec: {containers: [{name: a, image: b}]}}}`,
			"image and template cannot both be set"},
		{`{port: 80, args: [a], template: {spec: {containers: [{name: a, image: b}]}}}`,
			"write them in template.spec, or leave template out"},
		{`{port: 80, template: {spec: {containers: []}}}`, "spec.containers must have at least one container"},
		{`{port: 80, template: {}}`, "spec.containers must have at least one container"},
		{`{port: 80, template: {spec: {hostNetwork: true, containers: [{name: a, image: b}]}}}`,
			"spec.hostNetwork cannot work"},
		{`{port: 80, template: {spec: {containers: [{name: a, image: b, prots: []}]}}}`,
			`unknown field "spec.template.spec.containers[0].prots"`},
	} {
		n++
		_, err := w.send(fmt.Sprintf(header+"metadata: {name: s%d}\nspec: %s\n", n, c.spec))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !contains(err.Error(), c.want)) {
			t.Errorf("%s:\n got %v\nwant %q", c.spec, err, c.want)
		}
	}
	for _, name := range []string{"1a", "a.b", strings.Repeat("a", 64)} {
		_, err := w.send(fmt.Sprintf(header+"metadata: {name: %s}\nspec: {image: a/b, port: 80}\n", name))
		if err == nil || !contains(err.Error(), "metadata.name: write at most 63") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The schema keeps every field of a pod template.
func TestSchemaKeepsThePodTemplate(t *testing.T) {
	w := newWorld(t, nil)
	s, err := w.send(`apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata: {name: whole}
spec:
  port: 80
  template:
    metadata: {labels: {a: b}, annotations: {c: d}}
    spec:
      tolerations: [{key: e, operator: Exists}]
      initContainers: [{name: f, image: g, restartPolicy: Always}]
      containers:
      - {name: h, image: i, resources: {limits: {memory: 64Mi}}, readinessProbe: {httpGet: {path: /, port: web}}}
`)
	if err != nil {
		t.Fatal(err)
	}
	p := s.Spec.Template
	if p.Labels["a"] != "b" || p.Annotations["c"] != "d" || p.Spec.Tolerations[0].Key != "e" ||
		p.Spec.InitContainers[0].Name != "f" ||
		p.Spec.Containers[0].ReadinessProbe.HTTPGet.Port.StrVal != "web" ||
		p.Spec.Containers[0].Resources.Limits.Memory().Value() != 64<<20 {
		t.Errorf("got %+v", p)
	}
}
