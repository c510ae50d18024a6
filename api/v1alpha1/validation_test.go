// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
	"wangell.loutres.me/api/v1alpha1"
)

// service returns a service with the fields of a spec in YAML. It adds image and port if they are missing.
func service(t *testing.T, spec string) *v1alpha1.WangellService {
	t.Helper()
	s := new(v1alpha1.WangellService)
	s.Name = "hello"
	if err := yaml.UnmarshalStrict([]byte(spec), &s.Spec); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	if !strings.Contains(spec, "image:") {
		s.Spec.Image = "wangell.local/hello:v1"
	}
	if !strings.Contains(spec, "port:") {
		s.Spec.Port = 80
	}
	return s
}

func TestValidateAcceptsEveryField(t *testing.T) {
	for _, spec := range []string{
		`{}`,
		`image: redis:7`,
		`image: "localhost:5000/a/b@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`,
		`{port: 65535, targetPort: 1, idleTimeout: 31536000, wakeTimeout: 3600, maxParked: 4096, maxParkedPerSource: 1}`,
		`{terminationGracePeriodSeconds: 0, address: 10.46.100.5, imagePullPolicy: Never}`,
		`{command: [/bin/sh, -c, ""], args: [""], workingDir: /srv}`,
		`env: [{name: A, value: ""}, {name: my.var-1}]`,
		`resources: {limits: {cpu: 250m, memory: 64Mi}, requests: {cpu: 100m, memory: 1Mi}}`,
		`volumes: [{name: a, hostPath: {path: /srv, type: ""}}, {name: b, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]`,
		`{volumes: [{name: a, emptyDir: {}}],
			volumeMounts: [{name: a, mountPath: /a, readOnly: true}, {name: a, mountPath: /b}]}`,
		`securityContext: {runAsUser: 0, runAsGroup: 0, privileged: false, readOnlyRootFilesystem: true,
			capabilities: {add: [NET_ADMIN], drop: [ALL]}}`,
		`securityContext: {allowPrivilegeEscalation: true}`,
		`securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [NET_ADMIN]}}`,
		`{init: false, stopSignal: SIGRTMIN+3}`,
		`{init: true, stopSignal: "15"}`,
		`balancing: {level: Connection, localityPreference: Local}`,
		`sleep: {freezeAfter: 5s, stopAfter: 30m, reclaim: false, freezeWhenBusy: true}`,
		`{idleTimeout: 1800, sleep: {freezeAfter: 29m59s, stopAfter: 30m}}`,
		`sleep: {freezeAfter: 299s}`,
		`sleep: {freezeAfter: 5s, onPressure: Stop}`, `{minReplicas: 1, sleep: {freezeAfter: 5s, onPressure: Keep}}`,
		`{scaling: {target: 5, metric: requests}, balancing: {level: Request}}`,
		`balancing: {level: Request, protocol: HTTP2, clientIdleTimeout: 60, maxRequestsPerPod: 10000, warmup: 3600}`,
		`balancing: {level: Request, clientAddress: Transparent}`, `balancing: {level: Request, clientAddress: Header}`,
		`balancing: {level: Request, trustedProxies: [10.0.0.0/8, 192.0.2.7/32]}`,
	} {
		if errs := v1alpha1.Validate(service(t, spec)); len(errs) > 0 {
			t.Errorf("%s: %v", spec, errs)
		}
	}
}

func TestValidateRefusesWhatCannotWork(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{`image: ""`, "spec.image: missing: write which image to run, for example image: registry.example.com/app:v1"},
		{`image: "A b:c"`, `spec.image: "A b:c" is not an image reference: repository can only contain the characters`},
		{`image: "redis@sha256:12"`, `spec.image: "redis@sha256:12" is not an image reference: `},
		{`port: 0`, "spec.port: missing: write the port that clients use, for example port: 80"},
		{`port: 70000`, "spec.port: want a number from 1 to 65535, got 70000: write port: 80"},
		{`hostPort: 65536`, "spec.hostPort: want a number from 1 to 65535, got 65536: write hostPort: 8080"},
		{`hostAddress: 127.0.0.1`, "spec.hostAddress: opens no port without hostPort: write hostPort: 8080"},
		{`{hostPort: 80, hostAddress: "::1"}`,
			`spec.hostAddress: want an IPv4 address of the machine, got "::1": write hostAddress: 127.0.0.1`},
		{`{hostPort: 80, hostAddress: localhost}`, `spec.hostAddress: want an IPv4 address of the machine, got "localhost"`},
		{`{hostPort: 80, hostAddress: 0.0.0.0}`, "spec.hostAddress: 0.0.0.0 is not the address of one machine"},
		{`{hostPort: 80, hostAddress: 224.0.0.1}`, "spec.hostAddress: 224.0.0.1 is not the address of one machine"},
		{`targetPort: -1`, "spec.targetPort: want a number from 1 to 65535, got -1: write targetPort: 8080"},
		{`idleTimeout: 31536001`, "spec.idleTimeout: want a number from 1 to 31536000, got 31536001: write idleTimeout: 300"},
		{`sleep: {freezeAfter: 0s}`,
			"spec.sleep.freezeAfter: want whole seconds from 1s to 8760h, got 0s: write freezeAfter: 5s"},
		{`sleep: {stopAfter: 8761h}`, "spec.sleep.stopAfter: want whole seconds from 1s to 8760h, got 8761h0m0s: write"},
		{`{idleTimeout: 60, sleep: {stopAfter: 2m}}`,
			"spec.sleep.stopAfter: 2m0s differs from idleTimeout, 60 seconds, which means the same: write one of the two"},
		{`sleep: {freezeAfter: 5m}`, "spec.sleep.freezeAfter: the service would be stopped after 5m, before its pods are " +
			"frozen: write stopAfter: 10m, for example, or a shorter freezeAfter"},
		{`sleep: {freezeAfter: 5m, stopAfter: 60s}`, "spec.sleep.freezeAfter: the service would be stopped after 1m"},
		{`sleep: {freezeAfter: 5s, onPressure: Evict}`, `spec.sleep.onPressure: want Keep or Stop, got "Evict": write ` +
			"onPressure: Keep, or onPressure: Stop"},
		{`sleep: {onPressure: Stop}`, "spec.sleep.onPressure: has no effect without freezeAfter: it is about frozen pods: " +
			"write freezeAfter: 5s"},
		{`{minReplicas: 1, sleep: {freezeAfter: 5s, onPressure: Stop}}`,
			"spec.sleep.onPressure: has no effect beside minReplicas: 1, with which another pod would start at once: write"},
		{`wakeTimeout: 3601`, "spec.wakeTimeout: want a number from 1 to 3600"},
		{`maxParked: 4097`, "spec.maxParked: want a number from 1 to 4096"},
		{`maxParkedPerSource: -3`, "spec.maxParkedPerSource: want a number from 1 to 4096"},
		{`terminationGracePeriodSeconds: -1`, "spec.terminationGracePeriodSeconds: want a number from 0 to 3600, got -1"},
		{`address: "::1"`, `spec.address: want an IPv4 address, got "::1": write an address from the range of the instance`},
		{`address: 10.0.0.256`, `spec.address: want an IPv4 address, got "10.0.0.256"`},
		{`address: 127.0.0.1`, "spec.address: 127.0.0.1 cannot be a service address"},
		{`{image: "", template: {}}`,
			"spec.template: is not available on one machine: its fields are those of spec: write image, command"},
		{`replicas: 1`, "spec.replicas: is not available on one machine"},
		{`loadBalancerClass: a`,
			"spec.loadBalancerClass: is not available on one machine: Wangell is the only load balancer: remove it"},
		{`service: {type: ClusterIP}`,
			"spec.service: is not available on one machine: there are no Services: remove it"},
		{`appProtocol: http`,
			"spec.appProtocol: is not available on one machine: there are no gateways that read it: remove it"},
		{`serviceAccountName: a`, "spec.serviceAccountName: is not available on one machine"},
		{`enableServiceLinks: true`, "spec.enableServiceLinks: is not available on one machine"},
		{`minReplicas: 2`, "spec.maxReplicas: 1 is less than minReplicas, 2: write maxReplicas: 2"},
		{`maxReplicas: 33`, "spec.maxReplicas: want a number from 1 to 32, got 33: write maxReplicas: 3"},
		{`retries: 9`, "spec.retries: want a number from 0 to 8, got 9: write retries: 2"},
		{`balancing: {level: request}`,
			`spec.balancing.level: want Connection or Request, got "request": write level: Request`},
		{`balancing: {level: Request, protocol: http2}`, `spec.balancing.protocol: want Auto, HTTP1, HTTP2 or TCP`},
		{`balancing: {level: Request, clientIdleTimeout: 86401}`,
			"spec.balancing.clientIdleTimeout: want a number from 1 to 86400, got 86401: write clientIdleTimeout: 3600"},
		{`balancing: {level: Request, maxRequestsPerPod: -1}`,
			"spec.balancing.maxRequestsPerPod: want a number from 1 to 10000"},
		{`balancing: {level: Request, warmup: 3601}`, "spec.balancing.warmup: want a number from 1 to 3600"},
		{`balancing: {protocol: TCP}`, "spec.balancing.protocol: needs level: Request: write level: Request beside it"},
		{`balancing: {level: Request, clientAddress: transparent}`, `spec.balancing.clientAddress: want Header or ` +
			`Transparent, got "transparent": write clientAddress: Transparent`},
		{`balancing: {clientAddress: Header}`, "spec.balancing.clientAddress: needs level: Request"},
		{`balancing: {trustedProxies: [10.0.0.0/8]}`, "spec.balancing.trustedProxies: needs level: Request"},
		{`balancing: {level: Request, trustedProxies: [192.0.2.7]}`,
			"spec.balancing.trustedProxies[0]: want an IPv4 network, got the address 192.0.2.7: write 192.0.2.7/32"},
		{`balancing: {level: Request, trustedProxies: [ingress]}`, `spec.balancing.trustedProxies[0]: want an IPv4 ` +
			`network, got "ingress": write trustedProxies: [10.0.0.0/8]`},
		{`balancing: {level: Connection, warmup: 5}`, "spec.balancing.warmup: needs level: Request"},
		{`{balancing: {level: Request}, sessionAffinity: ClientIP}`,
			"spec.sessionAffinity: ClientIP keeps a client on one pod, but with level: Request"},
		{`sessionAffinity: clientip`,
			"spec.sessionAffinity: want None or ClientIP, got \"clientip\": write sessionAffinity: ClientIP"},
		{`scaling: {}`, "spec.scaling.target: missing: write the wanted value per pod"},
		{`scaling: {target: 5, metric: qps}`,
			"spec.scaling.metric: want connections, rate, cpu, memory, requests or concurrency"},
		{`scaling: {target: 5, metric: requests}`, "spec.scaling.metric: requests needs balancing.level: Request, which " +
			"counts requests: write balancing: {level: Request}, or metric: connections"},
		{`{scaling: {target: 5, metric: concurrency}, balancing: {level: Connection}}`,
			"spec.scaling.metric: concurrency needs balancing.level: Request"},
		{`{scaling: {target: 5, metric: concurrency}, balancing: {level: Request, protocol: TCP}}`,
			"spec.scaling.metric: concurrency needs requests, which balancing.protocol: TCP has not"},

		{`imagePull: {optimise: true}`, "spec.imagePull.optimise: needs mode Lazy: write mode: Lazy"},
		{`imagePull: {mode: Lazy, optimise: true, policy: Always}`,
			"spec.imagePull.optimise: does not go with the policy Always"},
		{`{image: "abc@sha256:1111111111111111111111111111111111111111111111111111111111111111",
			imagePull: {mode: Lazy, optimise: true}}`, "spec.imagePull.optimise: needs an image with a tag"},
		{`imagePullPolicy: always`,
			`spec.imagePullPolicy: want IfNotPresent, Always or Never, got "always": write imagePullPolicy: Always`},
		{`command: [""]`, "spec.command[0]: is empty"},
		{`args: [a, "b\0"]`, "spec.args[1]: contains a NUL character"},
		{`workingDir: srv`, `spec.workingDir: want an absolute path, got "srv": write workingDir: /srv`},

		{`env: [{name: ""}]`, "spec.env[0].name: missing: write name: NAME"},
		{`env: [{name: "A=B"}]`, "spec.env[0].name: want printable ASCII characters other than ="},
		{`env: [{name: A}, {name: A}]`, "spec.env[1].name: A is already set by spec.env[0]: remove one of the two"},
		{`env: [{name: A, value: "\0"}]`, "spec.env[0].value: contains a NUL character"},
		{`env: [{name: A, valueFrom: {}}]`, "spec.env[0].valueFrom: must have one source, got 0"},
		{`env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]`,
			"spec.env[0].valueFrom.fieldRef: is not available on one machine: values are in a secretKeyRef or a"},
		{`env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: a, key: b}}}]`,
			"spec.env[0].value: cannot be set beside valueFrom"},
		{`env: [{name: A, valueFrom: {secretKeyRef: {name: a}}}]`, "spec.env[0].valueFrom.secretKeyRef.key: missing"},
		{`env: [{name: A, valueFrom: {configMapKeyRef: {key: a}}}]`,
			"spec.env[0].valueFrom.configMapKeyRef.name: missing"},
		{`layer: {snapshotter: /x}`, `spec.layer.snapshotter: "/x" is not the name of a plugin of containerd`},
		{`layer: {sizeLimit: 64}`, "spec.layer.sizeLimit: 64 is less than 1Mi: write a size with its unit"},
		{`envFrom: [{prefix: A}]`, "spec.envFrom[0]: must have one source"},
		{`envFrom: [{prefix: A=, secretRef: {name: b}}]`, "spec.envFrom[0].prefix: want printable ASCII"},
		{`envFrom: [{secretRef: {}}]`, "spec.envFrom[0].secretRef.name: missing: write the name of a Secret"},
		{`resources: {limits: {gpu: 1}}`, "spec.resources.limits[gpu]: is not supported; only cpu and memory are"},
		{`resources: {requests: {a.b/c: 1}}`, "spec.resources.requests[a.b/c]: is not supported; only cpu and memory are"},
		{`resources: {limits: {cpu: 0}}`, "spec.resources.limits[cpu]: want more than zero, got 0: write cpu: 500m"},
		{`resources: {limits: {memory: 64m}}`,
			"spec.resources.limits[memory]: 64m is less than 4Mi, the least in which a process can start"},
		{`resources: {claims: [{name: a}]}`, "spec.resources.claims: is not available"},
		{`resources: {limits: {cpu: 1}, requests: {cpu: 2}}`,
			"spec.resources.requests[cpu]: 2 is more than the limit, 1: write cpu: 1, or raise the limit"},

		{`volumes: [{emptyDir: {}}]`, "spec.volumes[0].name: missing"},
		{`volumes: [{name: A_, emptyDir: {}}]`, `spec.volumes[0].name: want a DNS label`},
		{`volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]`,
			`spec.volumes[1].name: "a" is already the name of spec.volumes[0]`},
		{`volumes: [{name: a}]`, "spec.volumes[0]: has no kind of volume: write persistent: {} or emptyDir: {}"},
		{`volumes: [{name: a, emptyDir: {}, hostPath: {path: /a}}]`,
			"spec.volumes[0]: must have one kind of volume, got hostPath and emptyDir"},
		{`volumes: [{name: a, nfs: {server: b, path: /}}]`, "spec.volumes[0].nfs: is not available on one machine: " +
			"a volume is persistent, a hostPath, an emptyDir, a secret or a configMap"},
		{`volumes: [{name: a, secret: {}}]`, "spec.volumes[0].secret.secretName: missing"},
		{`volumes: [{name: a, configMap: {name: b, defaultMode: 512}}]`,
			"spec.volumes[0].configMap.defaultMode: want 0 to 0o777 (511), got 512"},
		{`volumes: [{name: a, configMap: {name: b, items: [{key: k, path: ../c}]}}]`,
			`spec.volumes[0].configMap.items[0].path: want a relative path without "..", got "../c"`},
		{`volumes: [{name: a, secret: {secretName: b, items: [{key: k, path: c}, {key: l, path: ./c}]}}]`,
			"spec.volumes[0].secret.items[1].path: is already the path of items[0]"},
		{`{volumes: [{name: a, secret: {secretName: b}}], volumeMounts: [{name: a, mountPath: /a, subPath: /b}]}`,
			`spec.volumeMounts[0].subPath: want a relative path without "..", got "/b"`},
		{`volumes: [{name: a, hostPath: {path: ""}}]`, "spec.volumes[0].hostPath.path: missing"},
		{`volumes: [{name: a, hostPath: {path: a/b}}]`,
			`spec.volumes[0].hostPath.path: want an absolute path, got "a/b": write path: /a/b`},
		{`volumes: [{name: a, hostPath: {path: /a/../etc}}]`,
			`spec.volumes[0].hostPath.path: contains "..", got "/a/../etc": write path: /etc`},
		{`volumes: [{name: a, hostPath: {path: /a, type: dir}}]`,
			"spec.volumes[0].hostPath.type: want Directory, DirectoryOrCreate, "},
		{`volumes: [{name: a, emptyDir: {medium: HugePages}}]`,
			`spec.volumes[0].emptyDir.medium: want Memory, got "HugePages"`},
		{`volumes: [{name: a, emptyDir: {sizeLimit: 0}}]`, "spec.volumes[0].emptyDir.sizeLimit: want more than zero, got 0"},
		{`volumeMounts: [{name: a, mountPath: /a}]`,
			`spec.volumeMounts[0].name: there is no volume "a" in spec.volumes: add volumes: [{name: a, emptyDir: {}}] to spec`},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: b, mountPath: /a}]}`, `write the name of a volume: a`},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: b}]}`,
			`spec.volumeMounts[0].mountPath: want an absolute path, got "b": write mountPath: /b`},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /b/}, {name: a, mountPath: /b}]}`,
			"spec.volumeMounts[1].mountPath: spec.volumeMounts[0] is already mounted at /b"},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /}]}`, "nothing can be mounted at /"},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /proc/sys}]}`,
			"nothing can be mounted at /proc/sys"},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /a, subPath: b}]}`,
			"spec.volumeMounts[0].subPath: is for volumes of kind secret and configMap on one machine"},
		{`{volumes: [{name: a, emptyDir: {}}], volumeMounts: [{name: a, mountPath: /a, mountPropagation: None}]}`,
			"spec.volumeMounts[0].mountPropagation: is not supported"},

		{`volumes: [{name: a, emptyDir: {mode: 448}}]`,
			"spec.volumes[0].emptyDir.mode: is not supported: remove it; supported are medium, sizeLimit"},

		{`securityContext: {runAsUser: -1}`, "spec.securityContext.runAsUser: want a number from 0 to 2147483647, got -1"},
		{`securityContext: {runAsGroup: 5}`, "spec.securityContext.runAsGroup: needs runAsUser as well"},
		{`securityContext: {allowPrivilegeEscalation: false, privileged: true}`,
			"spec.securityContext.allowPrivilegeEscalation: cannot be false with privileged: true"},
		{`securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [SYS_ADMIN]}}`,
			"spec.securityContext.allowPrivilegeEscalation: cannot be false with the capability SYS_ADMIN"},
		{`securityContext: {runAsNonRoot: false}`,
			"spec.securityContext.runAsNonRoot: is not supported: remove it; supported are runAsUser, "},
		{`securityContext: {seccompProfile: {type: Unconfined}}`, "spec.securityContext.seccompProfile: is not supported"},
		{`securityContext: {capabilities: {add: [CAP_NET_RAW]}}`,
			`spec.securityContext.capabilities.add[0]: "CAP_NET_RAW" is not a capability: write NET_RAW`},
		{`securityContext: {capabilities: {drop: [EVERYTHING]}}`,
			`spec.securityContext.capabilities.drop[0]: "EVERYTHING" is not a capability: write a name of capabilities(7)`},

		{`{image: a/b:v1, containers: [{name: hello, image: a/b:v1}]}`,
			`spec.containers[0].name: "hello" is already the name of the main container, which has the name of the service`},
		{`{image: a/b:v1, containers: [{name: x, image: a/b:v1}], initContainers: [{name: x, image: a/b:v1}]}`,
			`spec.containers[0].name: "x" is already the name of spec.initContainers[0]: write another name`},
		{`{image: a/b:v1, containers: [{name: X, image: a/b:v1}]}`, `spec.containers[0].name: want a DNS label`},
		{`{image: a/b:v1, containers: [{name: x}]}`, `spec.containers[0].image: missing: write which image to run`},
		{`{image: a/b:v1, containers: [{name: x, image: a/b:v1, restartPolicy: Always}]}`,
			`spec.containers[0].restartPolicy: is for init containers, which it makes sidecars`},
		{`{image: a/b:v1, initContainers: [{name: x, image: a/b:v1, restartPolicy: Never}]}`,
			`spec.initContainers[0].restartPolicy: is for init containers, which it makes sidecars: Always, got "Never"`},
		{`{image: a/b:v1, containers: [{name: x, image: a/b:v1, volumeMounts: [{name: v, mountPath: /v}]}]}`,
			`spec.containers[0].volumeMounts[0].name: there is no volume "v" in spec.volumes`},
		{`{image: a/b:v1, containers: [{name: x, image: a/b:v1, env: [{name: A}, {name: A}]}]}`,
			`spec.containers[0].env[1].name: A is already set by spec.containers[0].env[0]`},
		{`{image: a/b:v1, containers: [{name: x, image: a/b:v1, securityContext: {runAsUser: -1}}]}`,
			"spec.containers[0].securityContext.runAsUser: want a number from 0 to 2147483647, got -1"},
		{`{image: a/b:v1, containers: [{name: x, image: a/b:v1, resources: {limits: {memory: 1}}}]}`,
			"spec.containers[0].resources.limits[memory]: 1 is less than 4Mi"},
	} {
		spec, want := c.spec, c.want
		errs := v1alpha1.Validate(service(t, spec))
		if len(errs) != 1 || !strings.Contains(errs.Error(), want) {
			t.Errorf("%s:\n got %q\nwant %q", spec, errs.Error(), want)
		}
		for _, e := range errs {
			if e.Field == "" || e.Message == "" || e.Fix == "" {
				t.Errorf("%s: an error without field, message or fix: %+v", spec, e)
			}
		}
	}
}

func TestValidateClusterRefusesWhatCannotWork(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{`{}`, ""},
		{`{replicas: 3, maxReplicas: 3, loadBalancerClass: a/b, serviceAccountName: a, enableServiceLinks: true}`, ""},
		{`{appProtocol: kubernetes.io/h2c, loadBalancerClass: a/b, service: {type: LoadBalancer,
			loadBalancerClass: a/b, annotations: {a.example/B: "c d"}, labels: {e: f}, ipFamilyPolicy: SingleStack}}`, ""},
		{`service: {type: NodePort}`,
			`spec.service.type: want LoadBalancer or ClusterIP, got "NodePort": write type: LoadBalancer`},
		{`{loadBalancerClass: a/b, service: {type: ClusterIP}}`,
			"spec.loadBalancerClass: needs a Service of type LoadBalancer, but spec.service.type is ClusterIP"},
		{`service: {type: ClusterIP, loadBalancerClass: a/b}`,
			"spec.service.loadBalancerClass: needs a Service of type LoadBalancer, but spec.service.type is ClusterIP"},
		{`{loadBalancerClass: a/b, service: {loadBalancerClass: a/c}}`,
			"spec.service.loadBalancerClass: a/c differs from spec.loadBalancerClass, a/b: write one of the two"},
		{`service: {annotations: {wangell.loutres.me/made-from: a}}`,
			"spec.service.annotations[wangell.loutres.me/made-from]: wangell.loutres.me/made-from is Wangell's own: remove it"},
		{`service: {labels: {app.kubernetes.io/managed-by: Helm}}`,
			"spec.service.labels[app.kubernetes.io/managed-by]: app.kubernetes.io/managed-by is Wangell's own: remove it"},
		{`service: {labels: {a: b c}}`, `spec.service.labels[a]: "b c" is not the value of a label`},
		{`service: {labels: {"a b": c}}`, `spec.service.labels[a b]: "a b" is not a key of labels and annotations`},
		{`service: {ipFamilyPolicy: dual}`, "spec.service.ipFamilyPolicy: want SingleStack"},
		{`appProtocol: "h2c "`, `spec.appProtocol: want the name of a protocol, with or without a domain, got "h2c "`},
		{`{volumes: [{name: a, secret: {secretName: b}}],
			env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}`,
			""},
		{`{image: "", template: {spec: {containers: [{name: a, image: b}]}}}`, ""},
		{`image: ""`, "spec.image: missing"},
		{`sleep: {freezeAfter: 5s, freezeWhenBusy: true, reclaim: false, stopAfter: 30m}`, ""},
		{`sleep: {freezeAfter: 5m}`, "spec.sleep.freezeAfter: the service would be stopped after 5m, before its pods are"},
		{`layer: {snapshotter: native}`,
			"spec.layer.snapshotter: is not available on Kubernetes: only on one machine: remove it"},
		{`sleep: {prepared: 1}`, "spec.sleep.prepared: is not available on Kubernetes: only on one machine: remove it"},
		{`port: 0`, "spec.port: missing"},
		{`idleTimeout: -1`, "spec.idleTimeout: want a number"},
		{`{template: {spec: {containers: [{name: a}]}}}`,
			"spec.image: cannot be set beside template, which describes the whole pod: write it in spec.template.spec"},
		{`{image: "", init: true, template: {spec: {containers: [{name: a}]}}}`,
			"spec.init: cannot be set beside template, which describes the whole pod"},
		{`{image: "", stopSignal: INT, template: {spec: {containers: [{name: a}]}}}`,
			"spec.stopSignal: cannot be set beside template, which describes the whole pod"},
		{`imagePull: {mode: Lazy}`, ""},
		{`imagePull: {mode: Lazy, optimise: true}`, "spec.imagePull.optimise: is not available on Kubernetes"},
		{`{image: "", imagePull: {mode: Lazy},
			template: {spec: {runtimeClassName: kata, containers: [{name: a, image: b}]}}}`,
			"spec.imagePull.mode: is Lazy, which needs the RuntimeClass wangell-lazy, but the template has kata"},
		{`balancing: {level: Request, clientAddress: Header}`, ""},
		{`balancing: {level: Request, clientAddress: Transparent}`,
			"spec.balancing.clientAddress: Transparent is not available on Kubernetes"},
		{`{image: "", template: {}}`, "spec.template.spec.containers: missing"},
		{`{image: "", template: {spec: {hostNetwork: true, containers: [{name: a}]}}}`,
			"spec.template.spec.hostNetwork: cannot work"},
		{`{image: "", template: {spec: {restartPolicy: Never, containers: [{name: a}]}}}`,
			"spec.template.spec.restartPolicy: want Always"},
	} {
		spec, want := c.spec, c.want
		got := v1alpha1.ValidateCluster(service(t, spec)).Error()
		if (want == "") != (got == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%s:\n got %q\nwant %q", spec, got, want)
		}
	}
	s := service(t, "{}")
	s.Name = "1a"
	if got := v1alpha1.ValidateCluster(s).Error(); !strings.HasSuffix(got, "write a name such as a") {
		t.Errorf("got %q", got)
	}
}

func TestRequestsNeedEnvoy(t *testing.T) {
	got := v1alpha1.ValidateWithoutEnvoy(service(t, `balancing: {level: Request}`)).Error()
	if want := "spec.balancing.level: Request needs Envoy on the nodes"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q...", got, want)
	}
	if errs := v1alpha1.ValidateWithoutEnvoy(service(t, `balancing: {level: Connection}`)); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestValidateSuggestsValidNames(t *testing.T) {
	for _, c := range []struct{ namespace, name, want string }{
		{"", "hello-1", ""},
		{"team", "1", ""},
		{"", "", "metadata.name: missing: write a name for the service, for example name: hello"},
		{"", "Hello_World", "metadata.name: want a DNS label (RFC 1123: at most 63 of a-z, 0-9 and -, " +
			"a letter or digit first and last), got \"Hello_World\": write name: hello-world"},
		{"", "a.b", "write name: a-b"},
		{"", strings.Repeat("a", 64), "write name: " + strings.Repeat("a", 63)},
		{"", "-é-", "write name: hello"},
		{"A", "a", "metadata.namespace: want a DNS label"},
	} {
		s := service(t, "{}")
		s.Namespace, s.Name = c.namespace, c.name
		got := v1alpha1.Validate(s).Error()
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q/%q: got %q, want %q", c.namespace, c.name, got, c.want)
		}
	}
}

func TestDefaultFillsWhatIsLeftOut(t *testing.T) {
	s := service(t, "{maxParked: 10}")
	v1alpha1.Default(s)
	spec := s.Spec
	if s.APIVersion != "wangell.loutres.me/v1alpha1" || s.Kind != "WangellService" || s.Namespace != "default" {
		t.Errorf("got %s %s in %s", s.APIVersion, s.Kind, s.Namespace)
	}
	if spec.TargetPort != 80 || spec.IdleTimeout != 300 || spec.WakeTimeout != 60 ||
		spec.ImagePullPolicy != "IfNotPresent" || spec.MaxParked != 10 || spec.MaxParkedPerSource != 10 ||
		*spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("got %+v", spec)
	}
	if errs := v1alpha1.Validate(s); len(errs) > 0 {
		t.Error(errs)
	}
	// A template has its own grace period.
	for grace, want := range map[int64]int64{5: 5, 0: 0, 7200: 3600} {
		const spec = "{template: {spec: {terminationGracePeriodSeconds: %d, containers: [{name: a, image: a}]}}}"
		whole := service(t, fmt.Sprintf(spec, grace))
		v1alpha1.Default(whole)
		if got := *whole.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("template with %d s: service has %d s, want %d s", grace, got, want)
		}
	}
	stops := service(t, "sleep: {stopAfter: 30m}")
	v1alpha1.Default(stops)
	if stops.Spec.IdleTimeout != 1800 || len(v1alpha1.Validate(stops)) > 0 {
		t.Errorf("stopAfter 30m: idleTimeout is %d, %v", stops.Spec.IdleTimeout, v1alpha1.Validate(stops))
	}
	// Fields that are set stay.
	given := service(t, `{targetPort: 1, idleTimeout: 2, wakeTimeout: 3, maxParkedPerSource: 4,
		terminationGracePeriodSeconds: 0, imagePullPolicy: Always}`)
	given.Namespace = "team"
	v1alpha1.Default(given)
	g := given.Spec
	if given.Namespace != "team" || g.TargetPort != 1 || g.IdleTimeout != 2 || g.WakeTimeout != 3 || g.MaxParked != 1024 ||
		g.MaxParkedPerSource != 4 || *g.TerminationGracePeriodSeconds != 0 || g.ImagePullPolicy != "Always" {
		t.Errorf("got %+v", g)
	}
}

// Kubernetes 1.30 accepts in new definitions what 1.29 knows: no library for addresses or named formats.
func TestRulesOfTheSchemaAreThoseOfTheOldestKubernetes(t *testing.T) {
	text, err := os.ReadFile("../../deploy/crd/wangellservices.wangell.loutres.me.yaml")
	if err != nil {
		t.Fatal(err)
	}
	functions := regexp.MustCompile(`\b(isIP|ip|isCIDR|cidr|format|semver|isSemver)\([^)]*\)`)
	if newer := functions.FindAll(text, -1); newer != nil {
		t.Errorf("functions of later versions: %s", newer)
	}
}
