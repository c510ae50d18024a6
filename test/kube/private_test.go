// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/e2e"
)

// privateRegistry is a registry on the nodes' LAN that wants a user and a password.
type privateRegistry struct {
	host     string // as in the names of images
	password string

	mu    sync.Mutex
	blobs map[string]int // how often each was asked for, by path
}

// newPrivateRegistry starts a registry, which all nodes reach without TLS.
func newPrivateRegistry(t *testing.T, password string) *privateRegistry {
	t.Helper()
	r := &privateRegistry{password: password, blobs: map[string]int{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	listener := e2e.Must(lab.client.Listen(t.Context(), "tcp", net.JoinHostPort(lab.Client.IP, "0")))(t)
	r.host = listener.Addr().String()
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, req *http.Request) {
			if user, given, _ := req.BasicAuth(); user != "puller" || given != r.password {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
				r.mu.Lock()
				r.blobs[req.URL.Path]++
				r.mu.Unlock()
			}
			inner.ServeHTTP(w, req)
		})}}
	server.Start()
	t.Cleanup(server.Close)
	open := httptest.NewServer(inner)
	defer open.Close()
	content := e2e.Must(os.ReadFile(filepath.Join(folder, "server")))(t)
	for _, tag := range []string{"template", "account", "rotated"} {
		img := e2e.Must(image.Build(image.Spec{Entrypoint: []string{"/server"}, Files: map[string]image.File{
			"/server": {Data: content, Mode: 0o755}, "/name": {Data: []byte(r.host + tag), Mode: 0o644},
		}}))(t)
		to := e2e.Must(name.ParseReference(strings.TrimPrefix(open.URL, "http://")+"/private:"+tag, name.Insecure))(t)
		if err := remote.Write(to, img); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range lab.Nodes {
		dir := fmt.Sprintf("/proc/%d/root/etc/containerd/certs.d/%s", n.HolderPid, r.host)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, "server = %q\n", "http://"+r.host),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// secret is a Secret for the registry, of either type that kubelet knows.
func (r *privateRegistry) secret(name, password string, old bool) string {
	auth := fmt.Sprintf(`{%q: {"username": "puller", "password": %q}}`, r.host, password)
	kind, key := "kubernetes.io/dockerconfigjson", ".dockerconfigjson"
	if old {
		kind, key = "kubernetes.io/dockercfg", ".dockercfg"
	} else {
		auth = `{"auths": ` + auth + `}`
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: %s\ndata: {%s: %s}\n", name, kind, key,
		base64.StdEncoding.EncodeToString([]byte(auth)))
}

// testPrivate: images of a private registry are on nodes before the first client, with the credentials of a template or
// a service account; a missing Secret and a wrong password show in the condition, and the password nowhere.
func testPrivate(t *testing.T) {
	begin := time.Now()
	const right, wrong = "correct-horse-77", "battery-staple-33"
	r := newPrivateRegistry(t, right)
	apply := func(document string) {
		t.Helper()
		e2e.Must(lab.kubectl(document, "apply", "-f", "-"))(t)
	}
	service := func(name, pod string) {
		t.Helper()
		apply(fmt.Sprintf("apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: private-%s}\n"+
			"spec:\n  port: 80\n  targetPort: 8080\n  imagePull: {nodes: All}\n  template:\n    spec:\n      %s\n"+
			"      containers: [{name: private-%s, image: %q}]\n", name, pod, name, r.host+"/private:"+name))
		t.Cleanup(func() { e2e.Must(lab.kubectl("", "delete", "wgs", "private-"+name, "--wait"))(t) })
	}
	apply(r.secret("private-right", right, false))
	apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: private}\n" +
		"imagePullSecrets: [{name: private-none}, {name: private-old}]\n")
	apply(r.secret("private-old", right, true))
	t.Cleanup(func() {
		e2e.Must(lab.kubectl("", "delete", "secret/private-right", "secret/private-old", "secret/private-late",
			"serviceaccount/private"))(t)
	})
	// One of the Secrets that each of the first two names does not exist.
	service("template", "imagePullSecrets: [{name: private-none}, {name: private-right}]")
	service("account", "serviceAccountName: private")
	service("rotated", "imagePullSecrets: [{name: private-late}]")

	for _, key := range []string{"default/private-template", "default/private-account"} {
		lab.imageReady(t, key, metav1.ConditionTrue, "Present")
		fixed := lab.fixedImage(t, key)
		for _, n := range lab.Nodes {
			e2e.Eventually(t, n.Name+" has pinned "+fixed, func() (bool, string) {
				list := pinned(t, n.ContainerdSocket)
				return slices.Contains(list, fixed), fmt.Sprint(list)
			})
		}
	}
	// Each node has fetched each blob once: the daemons pulled nothing, and kubelet nothing twice.
	r.mu.Lock()
	for path, n := range r.blobs {
		if n > len(lab.Nodes) {
			t.Errorf("%s was fetched %d times by %d nodes", path, n, len(lab.Nodes))
		}
	}
	r.mu.Unlock()
	e2e.MustAsk(t, lab.client, lab.address(t, "default/private-template"))

	missing := lab.imageReady(t, "default/private-rotated", metav1.ConditionFalse, "Unauthorized")
	for _, part := range []string{"registry " + r.host + " refuses it (pull 401)", "Secret default/private-late exists"} {
		if !strings.Contains(missing, part) {
			t.Errorf("without the Secret the condition says %q, want %q in it", missing, part)
		}
	}
	apply(r.secret("private-late", wrong, false))
	e2e.Eventually(t, "the wrong password is tried", func() (bool, string) {
		out, err := lab.kubectl("", "get", "events", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.reason} "+
			"{.message}{\"\\n\"}{end}")
		n := 0
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "private-rotated-pulls-image-") && strings.Contains(line, "401") {
				n++
			}
		}
		return n > len(lab.Nodes), fmt.Sprint(n, err)
	})
	lab.imageReady(t, "default/private-rotated", metav1.ConditionFalse, "Unauthorized")
	apply(r.secret("private-late", right, false))
	lab.imageReady(t, "default/private-rotated", metav1.ConditionTrue, "Present")

	e2e.Eventually(t, "the pods that pulled are gone", func() (bool, string) {
		out, err := lab.kubectl("", "get", "pods", "-A", "-l", "wangell.loutres.me/pulls-for", "-o", "name")
		return err == nil && out == "", fmt.Sprint(out, err)
	})
	logs := lab.logs(begin)
	objects := e2e.Must(lab.kubectl("", "get", "wgs,pods,events,deployments", "-o", "yaml"))(t)
	for _, password := range []string{right, wrong} {
		for where, text := range map[string]string{"the logs": logs, "objects": objects} {
			if strings.Contains(text, password) ||
				strings.Contains(text, base64.StdEncoding.EncodeToString([]byte("puller:"+password))) {
				t.Errorf("%s have a password", where)
			}
		}
	}
}
