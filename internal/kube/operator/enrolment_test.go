// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/kube/kubewatch"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// pod creates a pod of a service account on a node, as the scheduler and the kubelet would.
func (w *world) pod(name, account, node string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, NodeName: node,
			Containers: []corev1.Container{{Name: "daemon", Image: "registry.example/wangell:1"}},
		},
	}
	w.create(p)
	return p
}

// tokens issues tokens of the API server, as the kubelet asks for them.
type tokens struct {
	w   *world
	api kubernetes.Interface
}

func (k tokens) issue(account string, pod *corev1.Pod, audiences ...string) string {
	k.w.t.Helper()
	seconds := int64(600)
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: audiences, ExpirationSeconds: &seconds,
	}}
	if pod != nil {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
		}
	}
	r, err := k.api.CoreV1().ServiceAccounts(k.w.namespace).CreateToken(context.Background(), account, r,
		metav1.CreateOptions{})
	if err != nil {
		k.w.t.Fatal(err)
	}
	return r.Status.Token
}

// dated returns a token with another time at which it expires, with the API server's own signature.
func dated(t *testing.T, token string, expires time.Time) string {
	t.Helper()
	pemKey, err := os.ReadFile(filepath.Join(apiServer.env.ControlPlane.GetAPIServer().CertDir, "sa-signer.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pemKey)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key := parsed.(*ecdsa.PrivateKey)
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	claims["exp"] = expires.Unix()
	for _, c := range []string{"iat", "nbf"} {
		claims[c] = expires.Add(-10 * time.Minute).Unix()
	}
	if payload, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// askFor asks for the keys of a node. It waits until the leader listens, and while its limit for an address, from which
// all requests of this test come, holds it up.
func (w *world) askFor(at enrolment.Endpoint, node, token string) (got enrolment.Keys, err error) {
	w.t.Helper()
	w.until("an answer about "+node, func() bool {
		got, err = enrolment.Ask(context.Background(), at, node, token)
		return err == nil || !strings.Contains(err.Error(), "429") && !errors.Is(err, syscall.ECONNREFUSED)
	})
	return got, err
}

// The API server, its tokens and their reviews are real.
func TestDaemonsEnrol(t *testing.T) {
	var log syncbuf.Buffer
	defer func() {
		if t.Failed() {
			t.Logf("the log of the operator: %s", log.String())
		}
	}()
	w := newWorld(t, func(c *Config) {
		c.DaemonAccount = Name{c.Namespace, "daemon"}
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	w.run()
	api, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"daemon", "other"} {
		w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}})
	}
	k := tokens{w, api}
	leader := &kubewatch.Leader{
		Leases: api.CoordinationV1().Leases(w.namespace), Name: w.cfg.Lease.Name, Log: slog.New(slog.DiscardHandler),
	}
	addr, fingerprint, err := leader.Endpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := enrolment.Endpoint{Address: addr, Fingerprint: fingerprint}
	a, b := w.pod("daemon-a", "daemon", "node-a"), w.pod("daemon-b", "daemon", "node-b")
	foreign, gone := w.pod("foreign", "other", "node-a"), w.pod("gone", "daemon", "node-a")
	good := k.issue("daemon", a, enrolment.Audience)
	fromGone := k.issue("daemon", gone, enrolment.Audience)
	now := int64(0)
	if err := api.CoreV1().Pods(w.namespace).Delete(t.Context(), "gone", metav1.DeleteOptions{
		GracePeriodSeconds: &now,
	}); err != nil {
		t.Fatal(err)
	}

	for node, pod := range map[string]*corev1.Pod{"node-a": a, "node-b": b} {
		got, err := w.askFor(at, node, k.issue("daemon", pod, enrolment.Audience))
		if err != nil || got.Node != w.key.ForNode(node) {
			t.Errorf("%s: %v", node, err)
		}
	}
	if _, err := w.askFor(at, "node-a", dated(t, good, time.Now().Add(time.Minute))); err != nil {
		t.Errorf("a token that expires in a minute: %v", err)
	}
	const noToken = "does not accept the token"
	for name, c := range map[string]struct{ node, token, want string }{
		"another node's":    {"node-b", good, `it is of "node-a"`},
		"another audience":  {"node-a", k.issue("daemon", a, "https://kubernetes.default.svc"), noToken},
		"no audience":       {"node-a", k.issue("daemon", a), noToken},
		"another account":   {"node-a", k.issue("other", foreign, enrolment.Audience), "not of the daemon's service account"},
		"of no pod":         {"node-a", k.issue("daemon", nil, enrolment.Audience), "not bound to a pod"},
		"of a pod gone":     {"node-a", fromGone, noToken},
		"expired":           {"node-a", dated(t, good, time.Now().Add(-time.Minute)), noToken},
		"another signature": {"node-a", good[:len(good)-8] + "AAAAAAAA", noToken},
	} {
		got, err := w.askFor(at, c.node, c.token)
		if err == nil || !strings.Contains(err.Error(), c.want) || got != (enrolment.Keys{}) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if text := log.String(); strings.Contains(text, good[:40]) || !strings.Contains(text, "daemon enrolled") {
		t.Errorf("the log has a token, or no enrolment: %s", text)
	}

	// The key that node-a got opens a session of node-a with this controller.
	connected := make(chan struct{}, 1)
	keys, err := w.askFor(at, "node-a", good)
	if err != nil {
		t.Fatal(err)
	}
	client, err := wire.NewClient(wire.ClientConfig{
		Server: addr, Key: keys.Node, Node: "node-a", Connected: func() { connected <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	select {
	case <-connected:
	case <-time.After(patience):
		t.Error("the key opens no session")
	}
}

// API servers before 1.30 do not say on which node a token's pod is.
func TestNodeOfATokenByItsPod(t *testing.T) {
	w := newWorld(t, nil)
	api, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "daemon"}})
	pod := w.pod("daemon-a", "daemon", "node-a")
	r := enrolment.Reviewer{API: api, Namespace: w.namespace, Account: "daemon"}
	for uid, want := range map[string]string{string(pod.UID): "node-a", "another": ""} {
		if node, err := r.NodeOfPod(t.Context(), pod.Name, uid); node != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", uid, node, err)
		}
	}
}
