// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// daemonCapabilities are all capabilities of the daemon. README.md says what each is for.
var daemonCapabilities = []corev1.Capability{"BPF", "NET_ADMIN", "NET_RAW", "PERFMON", "SYS_ADMIN"}

func TestDaemonHasNoRightsBeyondTheListed(t *testing.T) {
	for name, r := range variants(t) {
		spec := r.daemon.Spec.Template.Spec
		c := spec.Containers[0]
		s := c.SecurityContext
		if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
			t.Fatalf("%s: there are other containers: add their rights to this test", name)
		}
		if s.Privileged == nil || *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			!*s.ReadOnlyRootFilesystem {
			t.Errorf("%s: %+v", name, s)
		}
		if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
			!slices.Equal(s.Capabilities.Add, daemonCapabilities) {
			t.Errorf("%s: capabilities %+v", name, s.Capabilities)
		}
		if s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: seccomp %+v", name, s.SeccompProfile)
		}
		if !spec.HostNetwork || spec.HostPID || spec.HostIPC || spec.ShareProcessNamespace != nil {
			t.Errorf("%s: the daemon must share the node's network namespace, and no other", name)
		}
		// Folders of the node, and whether they are writable.
		want := map[string]bool{
			"/sys/fs/bpf": true, "/run/wangell": true, "/run/netns": false, "/run/containerd": false,
			"/var/log/pods": false,
		}
		if slices.Contains(c.Args, "--peers") {
			want["/var/lib/wangell"], want["/etc/containerd/certs.d"] = true, true
		}
		if slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--lazy-socket=") }) {
			want["/run/wangell-lazy"] = false
			if slices.Contains(c.Args, "--peers") { // not its parent, which has the snapshotter's mounts
				want["/var/lib/wangell-lazy/blobs"] = false
			}
		}
		for _, v := range spec.Volumes {
			if v.HostPath == nil {
				continue
			}
			write, ok := want[v.HostPath.Path]
			i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
			if !ok || i < 0 {
				t.Errorf("%s: the folder %s of the node is not listed here, or not mounted", name, v.HostPath.Path)
				continue
			}
			mount := c.VolumeMounts[i]
			if mount.ReadOnly == write || mount.MountPath != v.HostPath.Path {
				t.Errorf("%s: the folder %s of the node is mounted as %+v", name, v.HostPath.Path, mount)
			}
			if p := mount.MountPropagation; p != nil && *p == corev1.MountPropagationBidirectional {
				t.Errorf("%s: mounts of the daemon in %s propagate to the node", name, v.HostPath.Path)
			}
			delete(want, v.HostPath.Path)
		}
		if len(want) != 0 {
			t.Errorf("%s: not mounted: %v", name, want)
		}
		if max := r.daemon.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; max.IntValue() != 1 {
			t.Errorf("%s: %v daemons are updated at the same time", name, max)
		}
		if !slices.Equal(spec.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
			t.Errorf("%s: the daemon does not run on every node: %+v", name, spec.Tolerations)
		}
	}
}

// Freezing takes the node's processes and cgroups, for which an administrator has to ask.
func TestDaemonThatFreezesSeesProcessesAndCgroups(t *testing.T) {
	spec, plain := render(t, "--set", "daemon.freezing.enabled=true").daemon.Spec.Template.Spec,
		render(t).daemon.Spec.Template.Spec
	if !spec.HostPID || spec.HostIPC || spec.ShareProcessNamespace != nil {
		t.Error("it must share the node's process namespace, and no further one")
	}
	var more []string
	for _, v := range spec.Volumes {
		if v.HostPath != nil && !slices.ContainsFunc(plain.Volumes, func(p corev1.Volume) bool { return p.Name == v.Name }) {
			more = append(more, v.HostPath.Path)
		}
	}
	if !slices.Equal(more, []string{"/sys/fs/cgroup"}) || !slices.Equal(
		spec.Containers[0].SecurityContext.Capabilities.Add, daemonCapabilities) {
		t.Errorf("further folders %v, capabilities %+v", more, spec.Containers[0].SecurityContext.Capabilities)
	}
}

// looksWhereTheDaemonDoes checks that a container's arguments behind its command, and its mounts, are the daemon's.
func looksWhereTheDaemonDoes(t *testing.T, c, daemon corev1.Container) {
	t.Helper()
	for _, arg := range c.Args[2:] {
		if !slices.Contains(daemon.Args, arg) {
			t.Errorf("argument %s is not one of the daemon's: %v", arg, daemon.Args)
		}
	}
	for _, m := range c.VolumeMounts {
		same := func(d corev1.VolumeMount) bool { return d.Name == m.Name && d.MountPath == m.MountPath }
		if !slices.ContainsFunc(daemon.VolumeMounts, same) {
			t.Errorf("%s is mounted, but not by the daemon", m.MountPath)
		}
	}
}

// What thaws pods in place of a daemon that is away looks at the daemon's folders, and may do nothing else.
func TestThawerMatchesTheDaemon(t *testing.T) {
	if plain := render(t).daemon.Spec.Template.Spec.Containers; len(plain) != 1 {
		t.Errorf("%d containers where nothing is frozen, want the daemon alone", len(plain))
	}
	all := render(t, "--set", "daemon.freezing.enabled=true,daemon.runDir=/run/other").daemon.Spec.Template.Spec.Containers
	if len(all) != 2 {
		t.Fatalf("%d containers, want 2", len(all))
	}
	daemon, thaw := all[0], all[1]
	if !slices.Equal(thaw.Args[:2], []string{"daemon", "thaw"}) || thaw.Image != daemon.Image {
		t.Errorf("%s with %v", thaw.Image, thaw.Args)
	}
	looksWhereTheDaemonDoes(t, thaw, daemon)
	if s := thaw.SecurityContext; *s.Privileged || *s.AllowPrivilegeEscalation || len(s.Capabilities.Add) > 0 {
		t.Errorf("rights %+v", s)
	}
}

// Frozen pods give their requests back, and must get them again also when freezing is switched off.
func TestControllerMayResizePods(t *testing.T) {
	for _, set := range []string{"daemon.freezing.enabled=true", "daemon.freezing.enabled=false"} {
		may := false
		for _, o := range render(t, "--set", set).roles {
			for _, rule := range o.rules {
				if slices.Contains(rule.Resources, "pods/resize") {
					may = o.meta.Name == "wg-controller" && slices.Equal(rule.Verbs, []string{"patch"})
				}
			}
		}
		if !may {
			t.Errorf("%s: it may not", set)
		}
	}
}

func TestControllerHasNoRightsOnTheNode(t *testing.T) {
	for name, r := range variants(t) {
		hasNoRightsOnTheNode(t, name, r.controller.Spec.Template.Spec)
		if r.uninstall.Name != "" {
			hasNoRightsOnTheNode(t, name+", uninstall", r.uninstall.Spec.Template.Spec)
		}
	}
}

func hasNoRightsOnTheNode(t *testing.T, name string, spec corev1.PodSpec) {
	t.Helper()
	s, pod := spec.Containers[0].SecurityContext, spec.SecurityContext
	if !*pod.RunAsNonRoot || *pod.RunAsUser == 0 ||
		pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: pod %+v", name, pod)
	}
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) != 0 {
		t.Errorf("%s: container %+v", name, s)
	}
	if spec.HostNetwork || spec.HostPID || spec.HostIPC {
		t.Errorf("%s: shares namespaces of the node", name)
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s: mounts %s of the node", name, v.HostPath.Path)
		}
	}
}

// allowed lists the rights of each role: role, namespace (* for all), resource, [names]: verbs.
var allowed = `
wg-api elsewhere coordination.k8s.io/leases [wg]: get
wg-api elsewhere services/proxy [wg-api:api]: get
wg-controller * authentication.k8s.io/tokenreviews: create
wg-controller * authorization.k8s.io/subjectaccessreviews: create
wg-controller * apps/deployments: get list watch create update patch delete
wg-controller * apps/deployments/scale: update
wg-controller * apps/replicasets: get list watch create delete
wg-controller * discovery.k8s.io/endpointslices: get list watch create update delete
wg-controller * events.k8s.io/events: create patch
wg-controller * events: list
wg-controller * namespaces: list watch
wg-controller * networking.k8s.io/networkpolicies: list watch
wg-controller * nodes: get list watch
wg-controller * persistentvolumeclaims: list watch
wg-controller * pods: get list watch create patch delete
wg-controller * pods/log: get
wg-controller * pods/resize: patch
wg-controller * services: get list watch create patch
wg-controller * services/status: patch
wg-controller * wangell.loutres.me/wangellservices: get list watch patch
wg-controller * wangell.loutres.me/wangellservices/finalizers: update
wg-controller * wangell.loutres.me/wangellservices/status: patch
wg-controller elsewhere configmaps [wg]: get list watch
wg-controller elsewhere configmaps [wg-released]: get patch
wg-controller elsewhere coordination.k8s.io/leases: create
wg-controller elsewhere networking.k8s.io/networkpolicies [wg-controller-nodes]: get patch
wg-controller elsewhere coordination.k8s.io/leases [wg]: get list watch update patch
wg-daemon elsewhere apps/daemonsets [wg-daemon]: get list watch
wg-daemon elsewhere coordination.k8s.io/leases [wg]: get list watch
wg-edit * wangell.loutres.me/wangellservices/scale: update patch
wg-edit * wangell.loutres.me/wangellservices: create update patch delete deletecollection
wg-view * wangell.loutres.me/wangellservices/scale: get list watch
wg-view * wangell.loutres.me/wangellservices/status: get list watch
wg-view * wangell.loutres.me/wangellservices: get list watch
`

func TestRolesHaveNoRightsBeyondTheListed(t *testing.T) {
	for name, r := range variants(t) {
		var got []string
		for _, o := range r.roles {
			for _, rule := range o.rules {
				if text := fmt.Sprint(rule); strings.Contains(text, "*") || len(rule.NonResourceURLs) != 0 {
					t.Errorf("%s: %s: %s", name, o.meta.Name, text)
				}
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						got = append(got, line(o.meta.Name, o.meta.Namespace, group, resource, rule.ResourceNames,
							rule.Verbs))
					}
				}
			}
		}
		slices.Sort(got)
		want := strings.Split(strings.TrimSpace(allowed), "\n")
		if r.envoy.Name != "" {
			want = append(want, "wg-daemon elsewhere discovery.k8s.io/endpointslices: list watch")
		}
		if name == "everything" { // with the nodes' addresses given
			want = slices.DeleteFunc(want, func(l string) bool { return strings.Contains(l, "[wg-controller-nodes]") })
			want[slices.Index(want, "wg-controller * nodes: get list watch")] = "wg-controller * nodes: get"
		}
		if name == "plain manifests" {
			for i, l := range want {
				names := strings.NewReplacer("[wg-api:api]", "[wangell-api:api]", "wg-", "wangell-", "[wg]", "[wangell]",
					"[wg-released]", "[wangell-released]", "[wg-controller-nodes]", "[wangell-controller-nodes]",
					"elsewhere", "wangell-system")
				want[i] = names.Replace(l)
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: rights are\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func line(role, namespace, group, resource string, names, verbs []string) string {
	if namespace == "" {
		namespace = "*"
	}
	what := resource
	if group != "" {
		what = group + "/" + resource
	}
	if len(names) != 0 {
		what += fmt.Sprintf(" [%s]", strings.Join(names, " "))
	}
	return fmt.Sprintf("%s %s %s: %s", role, namespace, what, strings.Join(verbs, " "))
}

// Each binding gives an existing role to the account of the same component.
func TestBindingsResolve(t *testing.T) {
	for name, r := range variants(t) {
		own := slices.DeleteFunc(slices.Clone(r.bindings), binding.ofAPI)
		if len(own) != 3 {
			t.Errorf("%s: %d bindings", name, len(own))
		}
		for _, b := range own {
			there := slices.ContainsFunc(r.roles, func(o role) bool {
				return o.meta.Name == b.ref.Name && o.meta.Namespace == b.meta.Namespace
			})
			s := b.subjects[0]
			account := slices.ContainsFunc(r.accounts, func(a corev1.ServiceAccount) bool {
				return a.Name == s.Name && a.Namespace == s.Namespace
			})
			if !there || !account || len(b.subjects) != 1 || s.Kind != "ServiceAccount" || s.Name != b.ref.Name {
				t.Errorf("%s: binding %+v", name, b)
			}
		}
	}
}

// Whoever writes a service is asked for the rights of its pods, unless an administrator switches that off, and a policy
// that cannot be evaluated refuses.
func TestAuthorsOfServicesNeedRights(t *testing.T) {
	for name, r := range variants(t) {
		if len(r.admission) != 1 || len(r.inForce) != 1 || r.inForce[0].Spec.PolicyName != r.admission[0].Name {
			t.Fatalf("%s: policies %+v, bindings %+v", name, r.admission, r.inForce)
		}
		policy, binding := r.admission[0].Spec, r.inForce[0].Spec
		if *policy.FailurePolicy != admissionv1.Fail || len(policy.MatchConditions) != 0 || binding.MatchResources != nil ||
			!slices.Equal(binding.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
			t.Errorf("%s: %+v, bound by %+v", name, policy, binding)
		}
	}
	if off := render(t, "--set", "admission.enabled=false"); len(off.admission)+len(off.inForce) != 0 {
		t.Error("the policy cannot be switched off")
	}
	all, fewer := render(t), render(t, "--set", "admission.references=false")
	if a, b := len(all.admission[0].Spec.Validations), len(fewer.admission[0].Spec.Validations); a <= b || b != 2 {
		t.Errorf("%d rules, and %d without references", a, b)
	}
}

// Reaching the API is a right that nobody is given by default, and the controller's only right elsewhere is to read the
// authority of client certificates.
func TestNobodyReachesTheAPIByDefault(t *testing.T) {
	for name, r := range variants(t) {
		i := slices.IndexFunc(r.bindings, binding.ofAPI)
		switch {
		case (i >= 0) != (name == "everything"):
			t.Errorf("%s: binding %d", name, i)
		case i >= 0 && (r.bindings[i].ref.Kind != "Role" || r.bindings[i].ref.Name != "wg-api" ||
			len(r.bindings[i].subjects) != 1 || r.bindings[i].subjects[0].Name != "developers"):
			t.Errorf("%s: %+v", name, r.bindings[i])
		}
		if len(r.readers) != 1 || r.readers[0].Namespace != "kube-system" || len(r.readers[0].Subjects) != 1 ||
			r.readers[0].Subjects[0].Name != r.controller.Spec.Template.Spec.ServiceAccountName {
			t.Errorf("%s: %+v", name, r.readers)
		}
		if len(r.apis) != 1 || len(r.apis[0].Spec.Ports) != 1 || r.apis[0].Spec.Ports[0].Name != "api" {
			t.Errorf("%s: %+v", name, r.apis)
		}
	}
	off := render(t, "--set", "api.enabled=false")
	if len(off.apis) != 0 || len(off.readers) != 0 || strings.Contains(off.text, "subjectaccessreviews") ||
		strings.Contains(off.text, "--api-address") || strings.Contains(off.text, "services/proxy") {
		t.Error("something of the API is left when it is off")
	}
}

// The cleaning manifest has the version of the daemon, and looks in the daemon's folders.
func TestCleanMatchesTheDaemon(t *testing.T) {
	text, err := os.ReadFile("manifests/clean.yaml")
	if err != nil {
		t.Fatal(err)
	}
	clean := decode(t, string(text)).daemon.Spec.Template.Spec
	r := render(t, "--set", "daemon.freezing.enabled=true").daemon.Spec.Template.Spec
	c, daemon := clean.InitContainers[0], r.Containers[0]
	if c.Image != daemon.Image {
		t.Errorf("image %s, want the daemon's %s", c.Image, daemon.Image)
	}
	looksWhereTheDaemonDoes(t, c, daemon)
	if s := c.SecurityContext; s.Privileged != nil || *s.AllowPrivilegeEscalation ||
		!slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) {
		t.Errorf("rights %+v", s)
	}
	if !clean.HostNetwork || !slices.Equal(clean.Tolerations, r.Tolerations) {
		t.Error("it does not run on every node, or not in the node's network namespace")
	}
}
