// SPDX-License-Identifier: Apache-2.0

// Package runtimetest has the contract of runtime.Runtime as tests, which every implementation must pass.
package runtimetest

import (
	"context"
	_ "embed" // the source of the probe
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/runtime"
)

// ProbeTag is the name of the image that the tests run. Its program is in folder probe.
const ProbeTag = "wangell.local/probe:v1"

//go:embed probe/main.go
var probeSource []byte

// Probe returns the image called ProbeTag. It is compiled once in a process.
var Probe = sync.OnceValues(func() (v1.Image, error) {
	return image.Program(context.Background(), probeSource, image.Spec{
		Cmd: []string{"default", "arguments"}, Env: []string{"FROM_IMAGE=yes"}, WorkingDir: "/work",
		Files: map[string]image.File{
			"/etc/passwd": {Data: []byte("root:x:0:0::/:/\nprobe:x:1234:2345::/:/\n")},
			"/etc/group":  {Data: []byte("root:x:0:\nprobe:x:2345:\nextra:x:3456:probe\n")},
			"/work/file":  {Data: []byte("in the image\n")},
		},
	})
})

// Report is a probe's description of its environment.
type Report struct {
	UID, GID         int
	Groups           []int
	Dir, Hostname    string
	Args, Env        []string
	Files            uint64
	CapEff           string
	Seccomp          string
	NoNewPrivs       string
	Hosts, Resolv    string
	Addresses, Links []string
	Mounts, Cgroup   string
	PID              int
}

// Service returns a service in the namespace default that runs the probe, with the given environment: names and values
// in turn. The image is never pulled.
func Service(name string, env ...string) *v1alpha1.WangellService {
	s := &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.WangellServiceSpec{Image: ProbeTag, Port: 80, TargetPort: 8080,
			ImagePullPolicy: corev1.PullNever},
	}
	for i := 0; i+1 < len(env); i += 2 {
		s.Spec.Env = append(s.Spec.Env, corev1.EnvVar{Name: env[i], Value: env[i+1]})
	}
	return s
}

// Ask sends a request to port 8080 of a pod and returns the status and the body of the answer. It tries again until the
// pod answers; after a minute the test fails.
func Ask(t testing.TB, p runtime.Pod, path string, form url.Values) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	address := fmt.Sprintf("http://%s:8080%s?%s", p.Addr, path, form.Encode())
	var last error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		resp, err := client.Get(address)
		if err != nil {
			last = err
			continue
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	t.Fatalf("pod %s at %v does not answer: %v", p.ID, p.Addr, last)
	return 0, ""
}

// Call sends one request to port 8080 of a pod. There need not be an answer.
func Call(p runtime.Pod, path string, form url.Values) {
	resp, err := http.Get(fmt.Sprintf("http://%s:8080%s?%s", p.Addr, path, form.Encode()))
	if err == nil {
		_ = resp.Body.Close()
	}
}

// Look returns the report of a probe.
func Look(t testing.TB, p runtime.Pod) Report {
	t.Helper()
	code, text := Ask(t, p, "/", nil)
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil || code != http.StatusOK {
		t.Fatalf("probe answers %d %q: %v", code, text, err)
	}
	return r
}

// NextExit waits for the exit of a pod and skips the exits of others.
func NextExit(t testing.TB, r runtime.Runtime, podID string) runtime.Exit {
	t.Helper()
	timeout := time.After(60 * time.Second)
	for {
		select {
		case e := <-r.Exits():
			if e.PodID == podID {
				return e
			}
		case <-timeout:
			t.Fatalf("no exit of pod %s", podID)
		}
	}
}
