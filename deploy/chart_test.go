// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/test/testutil/e2e"
)

func TestChartRendersAllObjects(t *testing.T) {
	for name, r := range variants(t) {
		if r.daemon.Name == "" || r.controller.Name == "" ||
			len(r.accounts) != 2 || len(r.budgets) != 1 || len(r.config) != 1 {
			t.Errorf("%s: something is missing: %v", name, r.kinds)
		}
		want := namespace
		if name == "plain manifests" {
			want = "wangell-system"
			if len(r.namespaces) != 1 || r.namespaces[0].Name != want || len(r.crds) != 1 {
				t.Errorf("%s: namespaces %v, %d definitions", name, r.namespaces, len(r.crds))
			}
		}
		for _, m := range r.metas {
			if m.Namespace != want {
				t.Errorf("%s: %s is in the namespace %q, not in the release's", name, m.Name, m.Namespace)
			}
		}
		if name == "everything" && (len(r.monitors) != 3 || len(r.policies) != 3 || len(r.crds) != 1 ||
			len(r.caches) != 1) {
			t.Errorf("%s: %v", name, r.kinds)
		}
	}
}

// Cluster-wide objects have the release's name, so that two releases do not share any.
func TestObjectNamesBeginWithTheRelease(t *testing.T) {
	r := render(t)
	for _, o := range r.roles {
		if !strings.HasPrefix(o.meta.Name, release+"-") {
			t.Errorf("role %s does not begin with the release's name", o.meta.Name)
		}
	}
	if r := render(t, "--set", "fullnameOverride=other"); r.daemon.Name != "other-daemon" {
		t.Errorf("fullnameOverride: %s", r.daemon.Name)
	}
	if r := render(t, "--set", "nameOverride=two"); r.daemon.Name != release+"-two-daemon" {
		t.Errorf("nameOverride: %s", r.daemon.Name)
	}
}

// What the chart runs by default cannot be replaced in a registry: only its own image has a tag, before a release.
func TestDefaultImagesHaveDigests(t *testing.T) {
	pinned, seen := regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`), map[string]bool{}
	for name, r := range variants(t) {
		for line := range strings.Lines(r.text) {
			image, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "- "), "image: ")
			if !ok || strings.HasPrefix(image, "registry.loutres.me/wangell:v") {
				continue
			}
			seen[image] = true
			if !pinned.MatchString(strings.Trim(image, `"`)) {
				t.Errorf("%s: image %s has no digest", name, image)
			}
		}
	}
	if len(seen) != 2 {
		t.Errorf("images %v, want those of Envoy and of the cache", seen)
	}
}

func TestImageTagFollowsVersion(t *testing.T) {
	version, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for args, want := range map[string]string{
		"": ":v" + strings.TrimSpace(string(version)),
		"image.repository=localhost:5000/wangell,image.tag=v9": "localhost:5000/wangell:v9",
		"image.tag=v9,image.digest=" + digest:                  "wangell@" + digest,
	} {
		r := render(t, "--set", args)
		for _, c := range containers(r) {
			if !strings.HasSuffix(c.Image, want) {
				t.Errorf("%q: %s, want …%s", args, c.Image, want)
			}
		}
	}
	for name, r := range variants(t) {
		for _, c := range containers(r) {
			if strings.HasSuffix(c.Image, ":latest") || !strings.Contains(filepath.Base(c.Image), ":") {
				t.Errorf("%s: the image %s has no fixed tag", name, c.Image)
			}
		}
	}
}

func containers(r *rendered) []corev1.Container {
	return slices.Concat(r.daemon.Spec.Template.Spec.InitContainers, r.daemon.Spec.Template.Spec.Containers,
		r.controller.Spec.Template.Spec.InitContainers, r.controller.Spec.Template.Spec.Containers,
		r.uninstall.Spec.Template.Spec.Containers)
}

// A selector matches the pods of its own component only.
func TestSelectorsMatchTheirComponent(t *testing.T) {
	for name, r := range variants(t) {
		controller, daemon := r.controller.Spec.Template.Labels, r.daemon.Spec.Template.Labels
		check := func(what string, s *metav1.LabelSelector, in, out map[string]string) {
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil {
				t.Errorf("%s: %s: %v", name, what, err)
			} else if !selector.Matches(labels.Set(in)) || selector.Matches(labels.Set(out)) {
				t.Errorf("%s: the selector %s of the %s does not match its component only", name, selector, what)
			}
		}
		check("deployment", r.controller.Spec.Selector, controller, daemon)
		// That pod waits until there is none of them.
		check("deployment", r.controller.Spec.Selector, controller, r.uninstall.Spec.Template.Labels)
		check("daemon set", r.daemon.Spec.Selector, daemon, controller)
		check("disruption budget", r.budgets[0].Spec.Selector, controller, daemon)
		for _, p := range r.policies {
			switch p.Labels[component] {
			case "controller":
				check("network policy", &p.Spec.PodSelector, controller, daemon)
			case "envoy":
				check("network policy", &p.Spec.PodSelector, r.envoy.Spec.Template.Labels, daemon)
			default:
				check("network policy", &p.Spec.PodSelector, r.caches[0].Spec.Template.Labels, daemon)
			}
		}
		for i, m := range r.monitors {
			switch i {
			case 0:
				check("monitor of the controller", &m.Spec.Selector, controller, daemon)
			case 1:
				check("monitor of the daemon", &m.Spec.Selector, daemon, controller)
			default:
				check("monitor of the snapshotter", &m.Spec.Selector, r.lazy.Spec.Template.Labels, daemon)
			}
		}
		if name == "defaults" {
			terms := r.controller.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			check("anti-affinity", terms[0].PodAffinityTerm.LabelSelector, controller, daemon)
		}
	}
}

// Mounts name volumes, and probes and monitors name ports, that exist.
func TestReferencesResolve(t *testing.T) {
	for name, r := range variants(t) {
		for _, spec := range []corev1.PodSpec{r.daemon.Spec.Template.Spec, r.controller.Spec.Template.Spec} {
			c := spec.Containers[0]
			for _, m := range c.VolumeMounts {
				if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
					t.Errorf("%s: %s mounts %s, which is not a volume", name, c.Name, m.Name)
				}
			}
			ports := map[string]bool{}
			for _, p := range c.Ports {
				ports[p.Name] = true
			}
			for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if p == nil || p.HTTPGet == nil || !ports[p.HTTPGet.Port.StrVal] {
					t.Errorf("%s: %s: a probe is missing, or its port does not exist: %+v", name, c.Name, p)
				}
			}
			if !ports["metrics"] {
				t.Errorf("%s: %s has no metrics port", name, c.Name)
			}
			named := func(a corev1.ServiceAccount) bool { return a.Name == spec.ServiceAccountName }
			if !slices.ContainsFunc(r.accounts, named) {
				t.Errorf("%s: %s: no service account %s", name, c.Name, spec.ServiceAccountName)
			}
			if requests := c.Resources.Requests; requests.Cpu().IsZero() || requests.Memory().IsZero() ||
				c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: %s: resources %+v", name, c.Name, c.Resources)
			}
		}
	}
}

// The master key is in the controller only. Daemons have a token that is of use for nothing but to get their own key.
func TestDaemonsDoNotHaveTheMasterKey(t *testing.T) {
	for name, r := range variants(t) {
		daemon, controller := r.daemon.Spec.Template.Spec, r.controller.Spec.Template.Spec
		if !slices.ContainsFunc(controller.Volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && v.Secret.SecretName == keySecret(r) && *v.Secret.DefaultMode&0o007 == 0
		}) {
			t.Errorf("%s: the controller does not mount the master key, or makes it readable for all", name)
		}
		var tokens []corev1.ServiceAccountTokenProjection
		for _, v := range daemon.Volumes {
			if v.Secret != nil {
				t.Errorf("%s: the daemon mounts the Secret %s", name, v.Secret.SecretName)
			}
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken == nil {
					t.Errorf("%s: the daemon mounts %+v", name, s)
					continue
				}
				tokens = append(tokens, *s.ServiceAccountToken)
			}
		}
		if len(tokens) != 1 || tokens[0].Audience != enrolment.Audience || *tokens[0].ExpirationSeconds > 600 {
			t.Errorf("%s: tokens %+v", name, tokens)
		}
		account := "--daemon-account=" + r.daemon.Namespace + "/" + daemon.ServiceAccountName
		if !slices.Contains(controller.Containers[0].Args, account) {
			t.Errorf("%s: the controller's arguments do not have %s", name, account)
		}
		for _, o := range r.roles {
			for _, rule := range o.rules {
				if slices.Contains(rule.Resources, "secrets") {
					t.Errorf("%s: %s may use Secrets", name, o.meta.Name)
				}
			}
		}
	}
}

// keySecret returns the name of the Secret with the master key: the rendered one, or the one that the plain manifests
// expect.
func keySecret(r *rendered) string {
	if len(r.secrets) == 1 {
		return r.secrets[0].Name
	}
	return "wangell-wire"
}

func TestEachInstallationHasItsOwnKey(t *testing.T) {
	a, b := render(t), render(t)
	if len(a.secrets) != 1 || len(a.secrets[0].Data["wire.key"]) != 32 {
		t.Fatalf("secrets %+v", a.secrets)
	}
	if bytes.Equal(a.secrets[0].Data["wire.key"], b.secrets[0].Data["wire.key"]) {
		t.Error("two installations have the same key")
	}
	own := render(t, "--set", "wire.existingSecret=mine")
	if len(own.secrets) != 0 {
		t.Error("a Secret is rendered although existingSecret is set")
	}
	if got := own.controller.Spec.Template.Spec.Volumes[0].Secret.SecretName; got != "mine" {
		t.Errorf("the controller mounts the Secret %s", got)
	}
}

func TestSchemaRefusesWrongValues(t *testing.T) {
	for args, want := range map[string]string{
		"image.tag=latest":         "/image/tag",
		"image.repository=":        "/image/repository",
		"image.digest=sha256:12":   "/image/digest",
		"addresses={}":             "/addresses",
		"addresses={300.0.0.0/24}": "/addresses/0",
		"addresses={10.0.0.0/33}":  "/addresses/0",
		"addresses={fd00::/64}":    "/addresses/0",
		"addresses={" + strings.Repeat("10.0.0.0/24,", 8) + "10.0.1.0/24}": "/addresses",
		"addresses={10.0.0.1}":                         "/addresses/0",
		"wire.port=70000":                              "/wire/port",
		"wire.key=abc":                                 "/wire",
		"encapsulation.port=0":                         "/encapsulation/port",
		"controller.replicas=0":                        "/controller/replicas",
		"controller.lease.duration=3":                  "/controller/lease/duration",
		"daemon.xdpMode=fast":                          "/daemon/xdpMode",
		"daemon.announce=BGP":                          "/daemon/announce",
		"daemon.replies=edge":                          "/daemon/replies",
		"daemon.peers.rate=fast":                       "/daemon/peers/rate",
		"daemon.peers.dir=blobs":                       "/daemon/peers/dir",
		"daemon.wakeBudgets.node.burst=-1":             "/daemon/wakeBudgets/node/burst",
		"daemon.wakeBudgets.proven.perSecond=0":        "/daemon/wakeBudgets/proven/perSecond",
		"daemon.wakeBudgets.prefix.burst=1":            "/daemon/wakeBudgets",
		"daemon.wakeBudgets.unproven=many":             "/daemon/wakeBudgets/unproven",
		"sizes.flowsPerSource=-1":                      "/sizes/flowsPerSource",
		"daemon.privileged=true":                       "/daemon",
		"daemon.capabilities={ALL}":                    "/daemon/capabilities/0",
		"daemon.criSocket=unix:///run/containerd.sock": "/daemon/criSocket",
		"daemon.interfaces={a-name-too-long-for-it}":   "/daemon/interfaces/0",
		"daemon.extraArgs={debug}":                     "/daemon/extraArgs/0",
		"log.level=loud":                               "/log/level",
		"networkPolicy.nodeCIDRs={192.0.2.0}":          "/networkPolicy/nodeCIDRs/0",
		"requests.image.digest=sha256:12":              "/requests/image/digest",
		"requests.image.tag=latest":                    "/requests/image/tag",
		"requests.healthPort=10000":                    "/requests/healthPort",
		"requests.heap=1Gi":                            "/requests/heap",
		"colour=blue":                                  "colour",
	} {
		_, errs, err := helm(t, "--set", args)
		if err == nil || !strings.Contains(errs, "values don't meet the specifications") || !strings.Contains(errs, want) {
			t.Errorf("%s: want it refused for %s, got %v: %s", args, want, err, errs)
		}
	}
	if _, errs, err := helm(t, "--kube-version", "1.29.0"); err == nil || !strings.Contains(errs, "kubeVersion") {
		t.Errorf("Kubernetes 1.29 was accepted: %v: %s", err, errs)
	}
}

func TestDaemonsRestartWhenAddressesChange(t *testing.T) {
	a := render(t, "--set", "addresses={10.1.0.0/24,10.2.0.10-10.2.0.20}")
	if got := a.config[0].Data["addresses"]; got != "10.1.0.0/24,10.2.0.10-10.2.0.20" {
		t.Errorf("addresses %q", got)
	}
	// Daemons read the pools only when they start.
	const sum = "checksum/addresses"
	if b := render(t); a.daemon.Spec.Template.Annotations[sum] == b.daemon.Spec.Template.Annotations[sum] {
		t.Error("a change of the pools does not restart the daemons")
	}
}

// The chart's budgets of wakes and sizes are those of the program, and a change reaches the daemon.
// Peers are off by default, and then nothing of the node is mounted or listened at for them.
func TestPeersAreOffByDefault(t *testing.T) {
	for args, on := range map[string]bool{"daemon.peers.rate=7": false, "daemon.peers.enabled=true": true} {
		spec := render(t, "--set", args).daemon.Spec.Template.Spec
		passed := strings.Contains(strings.Join(spec.Containers[0].Args, " "), "--peers")
		mounted := slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "registries" })
		if passed != on || mounted != on {
			t.Errorf("%s: flags: %v, folders: %v, want %v", args, passed, mounted, on)
		}
	}
}

func TestBudgetsAndSizesReachTheDaemon(t *testing.T) {
	args := func(r *rendered) string {
		return strings.Join(r.daemon.Spec.Template.Spec.Containers[0].Args, " ") + " "
	}
	has := func(r *rendered, want ...string) {
		t.Helper()
		for _, arg := range want {
			if !strings.Contains(args(r), " "+arg+" ") {
				t.Errorf("no %s in %s", arg, args(r))
			}
		}
	}
	b, s, defaults := gate.DefaultWakeBudgets(), gate.DefaultSizes(), render(t)
	has(defaults, "--wake-budget-node="+b.Node.String(), "--wake-budget-service="+b.Service.String(),
		"--wake-budget-source="+b.Source.String(), "--wake-budget-proven="+b.Proven.String(),
		fmt.Sprintf("--wake-unproven=%d", b.Parked), fmt.Sprintf("--services=%d", s.Services),
		fmt.Sprintf("--pods=%d", s.Pods), fmt.Sprintf("--flows=%d", s.Flows), fmt.Sprintf("--parked=%d", s.Parked))
	if strings.Contains(args(defaults), "--max-flows") {
		t.Errorf("shares of the flow table are set: %s", args(defaults))
	}
	// Numbers as in a file of values: --set makes them integers or strings.
	has(render(t, "--set-json", "daemon.wakeBudgets.service.perSecond=0.1,daemon.wakeBudgets.proven.perSecond=1000000",
		"--set", "daemon.wakeBudgets.node.burst=20000000,daemon.wakeBudgets.source.burst=0",
		"--set", "daemon.wakeBudgets.unproven=0,sizes.flowsPerSource=30000000,sizes.flowsPerService=9"),
		"--wake-budget-node=20000000,50", "--wake-budget-service=100,0.1", "--wake-budget-source=0,10",
		"--wake-budget-proven=1000,1e+06", "--wake-unproven=0", "--max-flows-per-source=30000000",
		"--max-flows-per-service=9")
	for _, text := range []string{"0,10", "1000,1e+06"} {
		if err := new(gate.Budget).Set(text); err != nil {
			t.Errorf("the daemon refuses %s: %v", text, err)
		}
	}
}

// Its Job would end the controllers if it were applied with the output of helm template.
func TestOnlyHelmRunsTheUninstallation(t *testing.T) {
	for set, want := range map[string]bool{
		"requests.enabled=true": false, "daemon.freezing.enabled=true": false, "uninstall.hook=Never": false,
		"uninstall.hook=Always": true,
	} {
		r := render(t, "--set", set)
		if got := r.uninstall.Name != ""; got != want {
			t.Errorf("%s: %v", set, got)
		}
		if !want {
			continue
		}
		if r.uninstall.Annotations["helm.sh/hook"] != "pre-delete" {
			t.Errorf("%s: %v", set, r.uninstall.Annotations)
		}
		spec := r.uninstall.Spec.Template.Spec
		if deployment := "--deployment=" + namespace + "/" + r.controller.Name; !slices.Contains(spec.Containers[0].Args,
			deployment) || spec.ServiceAccountName != r.controller.Spec.Template.Spec.ServiceAccountName {
			t.Errorf("%s: %s with %v", set, spec.ServiceAccountName, spec.Containers[0].Args)
		}
	}
}

// The program has every flag that the chart passes.
func TestChartPassesKnownFlags(t *testing.T) {
	program, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(containers(render(t, everything...)), containers(render(t))...) {
		command := c.Args[:slices.IndexFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "-") })]
		help, err := exec.CommandContext(t.Context(), program, append(slices.Clone(command), "--help")...).CombinedOutput()
		if err != nil {
			t.Errorf("wangell %s --help: %v", command, err)
			continue
		}
		for _, arg := range c.Args[len(command):] {
			flag, _, _ := strings.Cut(arg, "=")
			if !slices.Contains(strings.Fields(string(help)), flag) {
				t.Error(fmt.Errorf("wangell %s has no flag %s", command, flag))
			}
		}
	}
}

// By default pods reach nothing of the controllers but the API, and the list of nodes is left to the leader, without a
// field that an upgrade would write.
func TestNetworkPoliciesOfTheController(t *testing.T) {
	policy := func(r *rendered, name string) *networkingv1.NetworkPolicy {
		for i := range r.policies {
			if r.policies[i].Name == name {
				return &r.policies[i]
			}
		}
		return nil
	}
	ports := func(p *networkingv1.NetworkPolicy) (open, some []string) {
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				if len(rule.From) == 0 {
					open = append(open, port.Port.String())
				} else {
					some = append(some, port.Port.String())
				}
			}
		}
		return open, some
	}
	r := render(t)
	nodes := policy(r, "wg-controller-nodes")
	if nodes == nil || nodes.Spec.Ingress != nil || len(nodes.Spec.PolicyTypes) != 1 {
		t.Fatalf("%+v", nodes)
	}
	args := r.controller.Spec.Template.Spec.Containers[0].Args
	if flag := "--node-policy=" + namespace + "/wg-controller-nodes"; !slices.Contains(args, flag) {
		t.Errorf("%s is not among %v", flag, args)
	}
	if nodes.Spec.PodSelector.MatchLabels["wangell.loutres.me/node-policy"] == "" {
		t.Errorf("it selects controllers that do not keep it: %v", nodes.Spec.PodSelector)
	}
	if open, some := ports(policy(r, "wg-controller")); !slices.Equal(open, []string{"api"}) || len(some) != 0 {
		t.Errorf("open to all %v, to some %v", open, some)
	}
	monitored := render(t, "--set", "podMonitor.enabled=true")
	if open, some := ports(policy(monitored, "wg-controller")); !slices.Equal(open, []string{"api"}) ||
		!slices.Equal(some, []string{"metrics"}) {
		t.Errorf("with a PodMonitor: open to all %v, to some %v", open, some)
	}
	listed := render(t, "--set", "networkPolicy.nodeCIDRs={192.0.2.0/24}")
	if policy(listed, "wg-controller-nodes") != nil {
		t.Error("nodeCIDRs are given, and the leader keeps a list")
	}
	if open, some := ports(policy(listed, "wg-controller")); len(open) != 0 || len(some) != 5 {
		t.Errorf("with nodeCIDRs: open to all %v, to some %v", open, some)
	}
	if off := render(t, "--set", "networkPolicy.enabled=false"); len(off.policies) != 0 {
		t.Errorf("%d policies are left", len(off.policies))
	}
}
