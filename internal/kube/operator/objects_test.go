// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

func example(change func(*v1alpha1.WangellServiceSpec)) *v1alpha1.WangellService {
	s := &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "shop", UID: "u"},
		Spec:       v1alpha1.WangellServiceSpec{Image: "registry.example/shop:1", Port: 80, TargetPort: 8080},
	}
	if change != nil {
		change(&s.Spec)
	}
	v1alpha1.Default(s)
	return s
}

// The defaults of a pod template are those that start quickest.
func TestPodTemplateHasQuickDefaults(t *testing.T) {
	s := example(nil)
	p := podTemplateOf(s)
	c := p.Spec.Containers[0]
	if *p.Spec.AutomountServiceAccountToken || *p.Spec.EnableServiceLinks || *p.Spec.TerminationGracePeriodSeconds != 30 ||
		c.ImagePullPolicy != corev1.PullIfNotPresent || c.ReadinessProbe != nil || c.LivenessProbe != nil ||
		c.Name != "shop" || c.Ports[0].ContainerPort != 8080 {
		t.Errorf("%+v", p.Spec)
	}
	if p.Labels[v1alpha1.LabelService] != "shop" || p.Labels[v1alpha1.LabelSpecHash] != v1alpha1.Hash(&s.Spec) ||
		p.Annotations[v1alpha1.AnnotationContainer] != "shop" {
		t.Errorf("%+v", p.ObjectMeta)
	}
	yes := true
	p = podTemplateOf(example(func(s *v1alpha1.WangellServiceSpec) {
		s.AutomountServiceAccountToken, s.EnableServiceLinks, s.ServiceAccountName, s.ImagePullPolicy = &yes, &yes, "robot",
			corev1.PullAlways
	}))
	if !*p.Spec.AutomountServiceAccountToken || !*p.Spec.EnableServiceLinks || p.Spec.ServiceAccountName != "robot" ||
		p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%+v", p.Spec)
	}
}

func TestPodTemplateHasAllContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := podTemplateOf(example(func(s *v1alpha1.WangellServiceSpec) {
		s.Containers = []v1alpha1.Container{{Name: "cache", Image: "redis", Args: []string{"--save", ""}}}
		s.InitContainers = []v1alpha1.Container{{Name: "proxy", Image: "proxy", RestartPolicy: &always}}
	}))
	c := p.Spec.Containers
	if len(c) != 2 || c[0].Name != "shop" || c[1].Name != "cache" || c[1].Image != "redis" || len(c[1].Args) != 2 ||
		c[1].ImagePullPolicy != corev1.PullIfNotPresent || c[1].Lifecycle == nil ||
		p.Annotations[v1alpha1.AnnotationContainer] != "shop" {
		t.Errorf("%+v", c)
	}
	if i := p.Spec.InitContainers; len(i) != 1 || i[0].Name != "proxy" || *i[0].RestartPolicy != always {
		t.Errorf("%+v", i)
	}
}

// kubelet runs the probes as well, and restarts a container that does not start in time.
func TestReadOnlyLayerGetsFoldersInMemory(t *testing.T) {
	no, limit := false, resource.MustParse("32Mi")
	p := podTemplateOf(example(func(s *v1alpha1.WangellServiceSpec) {
		s.Layer = &v1alpha1.Layer{Writable: &no, SizeLimit: &limit}
		s.Containers = []v1alpha1.Container{{Name: "b", Image: "b", VolumeMounts: []corev1.VolumeMount{
			{Name: "own", MountPath: "/tmp/"}}}}
	})).Spec
	var at [][]string
	for _, c := range p.Containers {
		var paths []string
		for _, m := range c.VolumeMounts {
			paths = append(paths, m.MountPath)
		}
		at = append(at, paths)
		if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
			t.Errorf("container %s is not read-only: %+v", c.Name, s)
		}
		if len(c.Resources.Limits) > 0 {
			t.Errorf("container %s has limits %v", c.Name, c.Resources.Limits)
		}
	}
	if got := fmt.Sprint(at); got != "[[/run /tmp /var/tmp] [/tmp/ /run /var/tmp]]" {
		t.Errorf("mounted at %s", got)
	}
	if v := p.Volumes[0]; len(p.Volumes) != 5 || v.EmptyDir.Medium != corev1.StorageMediumMemory ||
		v.EmptyDir.SizeLimit.Cmp(limit) != 0 {
		t.Errorf("volumes %+v", p.Volumes)
	}
}

func TestLimitOfTheLayerIsOneOfEphemeralStorage(t *testing.T) {
	limit := resource.MustParse("32Mi")
	s := example(func(s *v1alpha1.WangellServiceSpec) { s.Layer = &v1alpha1.Layer{SizeLimit: &limit} })
	c := podTemplateOf(s).Spec.Containers[0]
	if got := c.Resources.Limits[corev1.ResourceEphemeralStorage]; got.Cmp(limit) != 0 || c.SecurityContext != nil {
		t.Errorf("limits %v, %+v", c.Resources.Limits, c.SecurityContext)
	}
	if len(s.Spec.Resources.Limits) > 0 {
		t.Error("the spec was changed")
	}
}

func TestPodTemplateHasTheProbes(t *testing.T) {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path}}}
	}
	p := podTemplateOf(example(func(s *v1alpha1.WangellServiceSpec) {
		s.ReadyWhen, s.ReadinessProbe, s.StartupProbe = v1alpha1.ReadyWhenProbed, probe("/ready"), probe("/started")
	}))
	if c := p.Spec.Containers[0]; c.ReadinessProbe.HTTPGet.Path != "/ready" || c.StartupProbe.HTTPGet.Path != "/started" {
		t.Errorf("%+v", c)
	}
}

// Containers wait before their SIGTERM, unless the manifest has a preStop hook or leaves no time for it.
func TestContainersWaitBeforeSIGTERM(t *testing.T) {
	own := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bye"}}}}
	started := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/hello"}}}
	given := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "plain"}, {Name: "own", Lifecycle: own}, {Name: "started", Lifecycle: &corev1.Lifecycle{PostStart: started}},
	}}}
	for grace, wanted := range map[int64]int64{0: 0, 1: 0, 2: 1, 5: 2, 6: 3, 30: 3} {
		s := example(func(s *v1alpha1.WangellServiceSpec) {
			s.Image, s.Template, s.TerminationGracePeriodSeconds = "", given.DeepCopy(), &grace
		})
		c := podTemplateOf(s).Spec.Containers
		sleeps := func(l *corev1.Lifecycle) int64 {
			if l == nil || l.PreStop == nil || l.PreStop.Sleep == nil {
				return 0
			}
			return l.PreStop.Sleep.Seconds
		}
		if sleeps(c[0].Lifecycle) != wanted || sleeps(c[2].Lifecycle) != wanted || c[1].Lifecycle.PreStop.Exec == nil ||
			c[1].Lifecycle.PreStop.Sleep != nil ||
			c[2].Lifecycle.PostStart.Exec == nil {
			t.Errorf("grace %d: %+v", grace, c)
		}
	}
}

func TestTemplateOfTheSpecIsUsedWhole(t *testing.T) {
	grace, yes := int64(5), true
	given := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Name: "odd", Labels: map[string]string{"a": "b", v1alpha1.LabelService: "another"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, EnableServiceLinks: &yes, NodeSelector: map[string]string{"c": "d"},
			Containers: []corev1.Container{{Name: "proxy", Image: "p", ImagePullPolicy: corev1.PullAlways},
				{Name: "shop", Image: "i"}},
		},
	}
	s := example(func(s *v1alpha1.WangellServiceSpec) { s.Image, s.Template = "", given.DeepCopy() })
	p := podTemplateOf(s)
	if p.Name != "" || p.Labels["a"] != "b" || p.Labels[v1alpha1.LabelService] != "shop" ||
		p.Annotations[v1alpha1.AnnotationContainer] != "shop" {
		t.Errorf("%+v", p.ObjectMeta)
	}
	if *p.Spec.TerminationGracePeriodSeconds != 5 || !*p.Spec.EnableServiceLinks || *p.Spec.AutomountServiceAccountToken ||
		p.Spec.NodeSelector["c"] != "d" ||
		p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways ||
		p.Spec.Containers[1].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("%+v", p.Spec)
	}
	if s.Spec.Template.Name != "odd" || s.Spec.Template.Spec.AutomountServiceAccountToken != nil {
		t.Error("the service's own template was changed")
	}
	s.Spec.Template.Spec.Containers = s.Spec.Template.Spec.Containers[:1]
	if got := s.MainContainer(); got != "proxy" {
		t.Errorf("the main container is %s", got)
	}
}

// An update changes the operator's fields, and keeps those of others and of the API server.
func TestUpdatesKeepFieldsOfOthers(t *testing.T) {
	s := example(nil)
	is := DeploymentOf(s, s.Spec.Strategy(), false)
	five := int32(5)
	is.Spec.Replicas = &five
	is.Labels["theirs"], is.Annotations["deployment.kubernetes.io/revision"] = "a", "3"
	is.Spec.Template.Spec.RestartPolicy, is.Spec.Template.Spec.DNSPolicy = corev1.RestartPolicyAlways,
		corev1.DNSClusterFirst // filled in
	is.Spec.Template.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
	if updateDeployment(is, DeploymentOf(s, s.Spec.Strategy(), false)) {
		t.Error("nothing changed, and an update is wanted")
	}
	s.Spec.Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
	if !updateDeployment(is, DeploymentOf(s, s.Spec.Strategy(), false)) || *is.Spec.Replicas != 5 ||
		is.Labels["theirs"] != "a" ||
		is.Spec.Template.Spec.Containers[0].Env[0].Value != "1" {
		t.Errorf("%+v", is)
	}
	s.Spec.Env = nil
	if !updateDeployment(is, DeploymentOf(s, s.Spec.Strategy(), false)) ||
		len(is.Spec.Template.Spec.Containers[0].Env) != 0 {
		t.Error("a variable that was taken away is still there")
	}
	is.Spec.Template.Spec.Containers[0].Image = "somebody/elses"
	if !updateDeployment(is, DeploymentOf(s, s.Spec.Strategy(), false)) ||
		is.Spec.Template.Spec.Containers[0].Image != s.Spec.Image {
		t.Error("what somebody changed stays")
	}
}

func TestEventsForTheControllersReports(t *testing.T) {
	n := narrator{last: map[v1alpha1.Key]status.Event{}}
	for i, c := range []struct {
		e    status.Event
		want kubeEvent
	}{
		{status.Event{Kind: status.EventReport, Service: "a/b", Severity: status.SeverityInfo,
			Text: "wakes: 1 connection request parked"}, kubeEvent{}},
		{status.Event{Kind: status.EventState, Service: "a/b", State: "Waking"}, kubeEvent{}},
		{status.Event{Kind: status.EventReport, Service: "a/b", Severity: status.SeverityInfo,
			Text: "warm: listens 200.000 ms after the SYN"}, kubeEvent{}},
		{status.Event{Kind: status.EventState, Service: "a/b", State: "Warm"},
			kubeEvent{"Woke", "warm: listens 200.000 ms after the SYN"}},
		{status.Event{Kind: status.EventReport, Service: "a/b", Severity: status.SeverityInfo,
			Reason: "Scaled",
			Text:   "scaled from 1 to 2: busy"}, kubeEvent{"Scaled", "scaled from 1 to 2: busy"}},
		{status.Event{Kind: status.EventReport, Service: "a/b", Severity: status.SeverityError,
			Reason: "WakeFailed", Text: "wake failed: x"}, kubeEvent{"WakeFailed", "wake failed: x"}},
		{status.Event{Kind: status.EventReport, Service: "a/b", Severity: status.SeverityWarning,
			Reason: "Problem", Text: "y"}, kubeEvent{"Problem", "y"}},
		{status.Event{Kind: status.EventState, Service: "a/c", State: "Cold"},
			kubeEvent{"Slept", "no pod is left"}},
		{status.Event{Kind: status.EventReport, Severity: status.SeverityError, Text: "of no service"},
			kubeEvent{}},
	} {
		if got := n.eventOf(c.e); got != c.want {
			t.Errorf("%d: %+v, want %+v", i, got, c.want)
		}
	}
}

// Every reason is one that a report, a state or the pressure of a gate has, or that the status's writer gives itself.
func TestEveryReasonReachesTheAPI(t *testing.T) {
	s := &v1alpha1.WangellService{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
	scheme := kuberuntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for reason, d := range v1alpha1.EventReasons {
		e := status.Event{Kind: status.EventReport, Service: "a/b", Reason: reason, Text: "why"}
		switch reason {
		case v1alpha1.EventAddressAssigned, v1alpha1.EventNodeLost:
			continue // what writes the status records these two itself
		case v1alpha1.EventWoke:
			e = status.Event{Kind: status.EventState, Service: "a/b", State: "Warm"}
		case v1alpha1.EventSlept:
			e = status.Event{Kind: status.EventState, Service: "a/b", State: "Cold"}
		case v1alpha1.EventImageNotReady:
			e.Kind = status.EventImages
		case v1alpha1.EventWakesLimited, v1alpha1.EventTableAlmostFull:
			e.Kind = status.EventPressure
		}
		recorder := events.NewFakeRecorder(1)
		r := &reconciler{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(s).Build(), recorder: recorder}
		happened := make(chan status.Event, 1)
		happened <- e
		close(happened)
		r.narrate(t.Context(), happened)
		kind := "Normal"
		if d.Warning {
			kind = "Warning"
		}
		select {
		case got := <-recorder.Events:
			if !strings.HasPrefix(got, kind+" "+string(reason)+" ") {
				t.Errorf("%s: the Event is %q", reason, got)
			}
		default:
			t.Errorf("%s makes no Event", reason)
		}
	}
}

// The table of Events for users has every reason, with its type.
func TestEventsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (Normal|Warning) `(\\w+)`").FindAllStringSubmatch(string(page), -1)
	if len(rows) != len(v1alpha1.EventReasons) {
		t.Errorf("the table has %d rows, want %d", len(rows), len(v1alpha1.EventReasons))
	}
	for _, row := range rows {
		d, known := v1alpha1.EventReasons[v1alpha1.EventReason(row[2])]
		if !known || d.Warning != (row[1] == "Warning") {
			t.Errorf("%s: there is no such reason, or it has another type", row[0])
		}
	}
}

// Pods that may write to one volume are not the Deployment's to start.
func TestDeploymentOfAWriterIsRecreate(t *testing.T) {
	s := &v1alpha1.WangellService{}
	s.Name, s.Spec = "db", v1alpha1.WangellServiceSpec{
		Image: "registry.example.com/db:v1", Port: 5432,
		Volumes: v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "db"},
		}}),
		VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
	}
	const recreate, rolling = appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType
	for _, c := range []struct {
		most     int32
		strategy v1alpha1.UpdateStrategy
		mounts   []corev1.VolumeMount
		want     appsv1.DeploymentStrategyType
	}{
		{1, "", s.Spec.VolumeMounts, recreate},
		{2, "", s.Spec.VolumeMounts, rolling},
		{1, v1alpha1.UpdateRolling, s.Spec.VolumeMounts, rolling},
		{1, "", nil, rolling},
		{1, v1alpha1.UpdateRecreate, nil, recreate},
	} {
		d := s.DeepCopy()
		d.Spec.MaxReplicas, d.Spec.UpdateStrategy, d.Spec.VolumeMounts = c.most, c.strategy, c.mounts
		v1alpha1.Default(d)
		if got := DeploymentOf(d, d.Spec.Strategy(), false).Spec.Strategy; got.Type != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestInitAndStopSignalOfAPod(t *testing.T) {
	yes := true
	p := podTemplateOf(example(func(s *v1alpha1.WangellServiceSpec) { s.Init, s.StopSignal = &yes, "2" })).Spec
	if p.ShareProcessNamespace == nil || !*p.ShareProcessNamespace {
		t.Error("with init, a process of the pod's own must be PID 1")
	}
	// The API server refuses a stop signal for a pod whose operating system is unknown.
	if c := p.Containers[0].Lifecycle; c.StopSignal == nil || *c.StopSignal != corev1.SIGINT || c.PreStop == nil ||
		p.OS == nil || p.OS.Name != corev1.Linux {
		t.Errorf("%+v, %+v", c, p.OS)
	}
	p = podTemplateOf(example(nil)).Spec
	if p.ShareProcessNamespace != nil || p.OS != nil || p.Containers[0].Lifecycle.StopSignal != nil {
		t.Errorf("%+v", p)
	}
}
