// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// other returns a container that runs the probe, with names and values of environment variables in turn.
func other(name string, env ...string) v1alpha1.Container {
	c := v1alpha1.Container{Name: name, Image: runtimetest.ProbeTag, ImagePullPolicy: corev1.PullNever}
	for i := 0; i+1 < len(env); i += 2 {
		c.Env = append(c.Env, corev1.EnvVar{Name: env[i], Value: env[i+1]})
	}
	return c
}

// logOf returns the log of a container of a service.
func logOf(t *testing.T, r *Runtime, k v1alpha1.Key, container string) string {
	t.Helper()
	var b bytes.Buffer
	if err := copyLog(t.Context(), r.cfg.containerLog(k, container), &b, -1, false); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestContainersOfAPodShareItsNetworkAndVolumes(t *testing.T) {
	cfg := testConfig(t)
	r := startWithProbe(t, cfg)
	s := runtimetest.Service("several")
	shared := corev1.VolumeMount{Name: "shared", MountPath: "/shared"}
	inMemory := corev1.VolumeMount{Name: "memory", MountPath: "/memory"}
	s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "shared",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, corev1.Volume{Name: "memory",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	s.Spec.VolumeMounts = []corev1.VolumeMount{shared, inMemory}
	second := other("second", "PORT", "8081", "MINE", "yes")
	second.VolumeMounts = []corev1.VolumeMount{shared, inMemory}
	second.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	s.Spec.Containers = []v1alpha1.Container{second}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	first := runtimetest.Look(t, p)
	for _, file := range []string{"/shared/file", "/memory/file"} {
		if code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {file}, "t": {"from the first"}}); code !=
			http.StatusOK {
			t.Fatal(text)
		}
		if text := get(t, p, 8081, "/read?f="+file); text != "from the first" {
			t.Errorf("the second container reads %q in %s", text, file)
		}
	}
	if text := get(t, p, 8081, "/"); !strings.Contains(text, "MINE=yes") || strings.Contains(text, first.Cgroup) {
		t.Errorf("the second container is not its own: %s", text)
	}
	if u, err := r.Usage(t.Context(), p.ID); err != nil || u.CPU == 0 || len(u.Containers) != 2 ||
		u.Containers[1].Name != "second" || u.Containers[1].MemoryLimit != 64<<20 || u.Containers[0].CPU == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	freezeAndThaw(t, r, p, "several", "second")
	if err := r.Stop(t.Context(), p.ID, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if text := logOf(t, r, "default/several", "second"); !strings.Contains(text, "8081\nprobe: stopped\n") {
		t.Errorf("the second container was not asked to stop: %q", text)
	}
	if text := logOf(t, r, "default/several", "several"); strings.Contains(text, "8081") {
		t.Errorf("the main container's log has the output of the other: %q", text)
	}
	if left := r.containersOf(p.ID); len(left) != 1 {
		t.Errorf("still known: %q", left)
	}
}

// freezeAndThaw freezes a pod, as the daemon does it, and has all its containers answer after that.
func freezeAndThaw(t *testing.T, r *Runtime, p runtime.Pod, containers ...string) {
	t.Helper()
	f := freezer.New("")
	for range 3 {
		if err := f.Freeze(t.Context(), p.Cgroup); err != nil {
			t.Fatal(err)
		}
		for _, name := range containers {
			cgroup := r.cfg.containerCgroup(p.ID, name, len(containers) == 1)
			if frozen, err := f.Frozen(cgroup); err != nil || !frozen {
				t.Errorf("container %s of a frozen pod is frozen: %t, %v", name, frozen, err)
			}
		}
		if err := f.Thaw(p.Cgroup); err != nil {
			t.Fatal(err)
		}
		for i := range containers {
			if text := get(t, p, 8080+i, "/"); !strings.Contains(text, "Hostname") {
				t.Errorf("container %s of a thawed pod answers %q", containers[i], text)
			}
		}
	}
}

// get asks a pod at a port, until it answers.
func get(t *testing.T, p runtime.Pod, port int, path string) string {
	t.Helper()
	var text string
	eventually(t, func() (err error) {
		text, err = ask(t, p, port, path)
		return err
	})
	return text
}

// ask sends a request to a port of a pod, and returns the body of the answer.
func ask(t *testing.T, p runtime.Pod, port int, path string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d%s", p.Addr, port, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Close = true
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func TestContainerThatEndsIsStartedAgainInItsPod(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	s := runtimetest.Service("restarted")
	s.Spec.Containers = []v1alpha1.Container{other("second", "PORT", "8081")}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	get(t, p, 8081, "/write?f=/mine&t=x")
	_, _ = ask(t, p, 8081, "/exit?code=3") // it answers nothing
	if text := get(t, p, 8081, "/read?f=/mine"); !strings.Contains(text, "no such file") {
		t.Errorf("the new container has the files of the one before: %q", text)
	}
	if u, err := r.Usage(t.Context(), p.ID); err != nil || len(u.Containers) != 2 || u.Containers[1].Restarts != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	runtimetest.Look(t, p) // the main container has gone on
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Fatal(err)
	}
}

func TestInitContainersRunBeforeTheMainOne(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	s := runtimetest.Service("initialized")
	always := corev1.ContainerRestartPolicyAlways
	sidecar := other("sidecar", "PORT", "8081")
	sidecar.RestartPolicy = &always
	s.Spec.InitContainers = []v1alpha1.Container{other("first", "EXIT", "0"), sidecar, other("second", "EXIT", "0")}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		if text := logOf(t, r, "default/initialized", name); text != "probe: told to exit\n" {
			t.Errorf("log of %s: %q", name, text)
		}
	}
	get(t, p, 8081, "/")
	runtimetest.Look(t, p)
	if err := r.Stop(t.Context(), p.ID, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if text := logOf(t, r, "default/initialized", "sidecar"); !strings.HasSuffix(text, "probe: stopped\n") {
		t.Errorf("log of the sidecar: %q", text)
	}
}

func TestInitContainerThatFailsIsStartedAgainAndKeepsTheMainOneFromStarting(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	s := runtimetest.Service("hindered")
	s.Spec.InitContainers = []v1alpha1.Container{other("migrate", "EXIT", "4")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		log := r.cfg.containerLog("default/hindered", "migrate")
		for ctx.Err() == nil && strings.Count(readTail(log, 0, 4096), "told to exit") < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		cancel() // it has failed twice
	}()
	var waits []string
	_, err := r.Start(ctx, s, runtime.StartHooks{Waits: func(why string) { waits = append(waits, why) }})
	if len(waits) < 2 || waits[0] != `init container "migrate" does not end: wangell logs hindered -c migrate` ||
		waits[1] != `init container "migrate" exited with code 4: its output ends with "probe: told to exit"` {
		t.Errorf("it waits for %q", waits)
	}
	if err == nil || !strings.Contains(err.Error(), `init container "migrate"`) ||
		!strings.Contains(err.Error(), `exited with code 4: its output ends with "probe: told to exit"`) {
		t.Errorf("got %v", err)
	}
	if text := logOf(t, r, "default/hindered", ""); text != "" {
		t.Errorf("the main container has run: %q", text)
	}
	if pods, _ := r.List(t.Context()); len(pods) != 0 {
		t.Errorf("left: %v", pods)
	}
}

func TestNextProcessAdoptsAllContainersOfAPod(t *testing.T) {
	cfg := testConfig(t)
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	loadProbe(t, r)
	s := runtimetest.Service("adopted")
	s.Spec.InitContainers = []v1alpha1.Container{other("first", "EXIT", "0")}
	s.Spec.Containers = []v1alpha1.Container{other("second", "PORT", "8081")}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	get(t, p, 8081, "/")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	next := start(t, cfg)
	_, _ = ask(t, p, 8081, "/exit?code=0")
	get(t, p, 8081, "/")
	if err := next.Stop(t.Context(), p.ID, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	before := inventory(t, cfg)
	for _, line := range before {
		if strings.Contains(line, "second") || strings.Contains(line, p.ID) {
			t.Error("left behind:", line)
		}
	}
}
