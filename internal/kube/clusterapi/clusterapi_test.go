// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/kube/access"
	"wangell.loutres.me/internal/kube/tunnel"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

// services has two services in each of two namespaces.
type services struct {
	slept  atomic.Value
	held   atomic.Int32
	events chan status.Event
	more   atomic.Value // the name of one more
}

func (s *services) Status() []status.Status {
	var out []status.Status
	all := []string{"red/a", "red/b", "team/a", "team/c"}
	if more, ok := s.more.Load().(string); ok {
		all = append(all, more)
	}
	for _, n := range all {
		namespace, name := v1alpha1.Key(n).Split()
		out = append(out, status.Status{Service: v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		}})
	}
	return out
}
func (*services) Resolve(string) (v1alpha1.Key, error) { panic("it would tell of all namespaces") }
func (*services) Pressure() []status.Pressure          { return []status.Pressure{{Reason: "Full"}} }
func (*services) Wakes(k v1alpha1.Key) []lifecycle.Waterfall {
	all := []lifecycle.Waterfall{{Service: "red/a"}, {Service: "team/a"}}
	return slices.DeleteFunc(all, func(w lifecycle.Waterfall) bool { return k != "" && string(k) != w.Service })
}
func (*services) Wake(context.Context, v1alpha1.Key) error { return nil }
func (s *services) Hold(context.Context, v1alpha1.Key) (release func(), err error) {
	s.held.Add(1)
	return func() { s.held.Add(-1) }, nil
}
func (s *services) Sleep(_ context.Context, k v1alpha1.Key) error { s.slept.Store(k); return nil }
func (*services) Logs(_ context.Context, k v1alpha1.Key, w io.Writer, _ runtime.LogOptions) error {
	_, err := fmt.Fprintln(w, "log of", k)
	return err
}
func (s *services) Subscribe(ctx context.Context) <-chan status.Event {
	out := make(chan status.Event)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-s.events:
				if !ok {
					return
				}
				select {
				case out <- e:
				case <-ctx.Done():
				}
			}
		}
	}()
	return out
}
func (*services) Ready() error { return nil }
func (*services) Gates(context.Context) ([]status.Gate, error) {
	return []status.Gate{{Node: "a"}, {Node: "b"}}, nil
}
func (*services) Connections(context.Context) (status.Connections, error) {
	return status.Connections{Others: 5}, nil
}

// authority is a cluster's authority of client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// issue returns the certificate and the key of a user, in PEM.
func (a *authority) issue(t *testing.T, user string, groups ...string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// cluster is a leading controller, a follower, and an API server that passes tunnels on to the follower.
type cluster struct {
	t        *testing.T
	services *services
	ca       *authority
	url      string
	lease    coordinationv1.Lease
	reviews  atomic.Int32 // of tokens
	revoked  atomic.Bool  // token-ann is no longer accepted
	leads    atomic.Bool
	leader   atomic.Value // its address
	review   kubernetes.Interface
}

var ours = Controller{Namespace: "wangell-system", Name: "wangell"}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, services: &services{events: make(chan status.Event, 8)}, ca: newAuthority(t)}
	c.leads.Store(true)
	review := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data:       map[string]string{"client-ca-file": c.ca.pem()},
	})
	review.PrependReactor("create", "tokenreviews", c.reviewToken)
	review.PrependReactor("create", "subjectaccessreviews", reviewRights)
	c.review = review
	c.lead()
	pass := &tunnel.Server{
		Leader: func(context.Context) (string, error) { return c.leader.Load().(string), nil },
		Log:    slog.New(slog.DiscardHandler),
	}
	follower, _ := c.run(func(ctx context.Context, l net.Listener) error { return pass.Serve(ctx, l) })
	c.url = c.serveAPI(follower)
	return c
}

// lead starts a leading controller.
func (c *cluster) lead() (stop func()) {
	c.t.Helper()
	certificate, err := pin.NewCertificate("test", time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	holder := "controller-1/127.0.0.1:7946"
	c.lease = coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			v1alpha1.LabelCertificate: pin.Fingerprint(certificate),
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
	log := slog.New(slog.DiscardHandler)
	end := &tunnel.Server{Leader: func(context.Context) (string, error) { return "", nil }, Log: log}
	people := access.New(access.Config{
		API: c.review, Certificate: certificate, Log: log,
		Services: func() access.Services {
			if !c.leads.Load() {
				return nil
			}
			return c.services
		},
	})
	leader, stopTunnels := c.run(func(ctx context.Context, l net.Listener) error { return end.Serve(ctx, l) })
	_, stopAPI := c.run(func(ctx context.Context, _ net.Listener) error { return people.Serve(ctx, end) })
	c.leader.Store(leader)
	return func() { stopAPI(); stopTunnels() }
}

// run runs a server until it is stopped or the test ends, and returns its address.
func (c *cluster) run(serve func(context.Context, net.Listener) error) (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
		l.Close()
	})
	c.t.Cleanup(stop)
	return l.Addr().String(), stop
}

// serveAPI serves the Lease and the proxy subresource, as the API server does.
func (c *cluster) serveAPI(controller string) string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/coordination.k8s.io/v1/namespaces/wangell-system/leases/wangell",
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(&c.lease)
		})
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: controller})
		_, r.Out.URL.Path, _ = strings.Cut(r.In.URL.Path, "/proxy")
		r.Out.Header.Del("Authorization") // the API server removes it
	}}
	mux.HandleFunc("/api/v1/namespaces/wangell-system/services/wangell-api:api/proxy/",
		func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer token-far" {
				w.WriteHeader(http.StatusForbidden)
				_ = json.NewEncoder(w).Encode(metav1.Status{
					TypeMeta: metav1.TypeMeta{Kind: "Status"}, Message: `services "wangell-api:api" is forbidden`,
				})
				return
			}
			proxy.ServeHTTP(w, r)
		})
	s := httptest.NewUnstartedServer(mux)
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	c.t.Cleanup(s.Close)
	return s.URL
}

// reviewToken knows token-NAME as a token of the user NAME.
func (c *cluster) reviewToken(a clienttesting.Action) (bool, kuberuntime.Object, error) {
	c.reviews.Add(1)
	r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
	name, ok := strings.CutPrefix(r.Spec.Token, "token-")
	if ok && !(name == "ann" && c.revoked.Load()) {
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name}}
	}
	return true, r, nil
}

// reviewRights: root may do everything, the group reds see the namespace red, ann sees team and later, and bob may do
// in team what there is to do.
func reviewRights(a clienttesting.Action) (bool, kuberuntime.Object, error) {
	r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
	at := r.Spec.ResourceAttributes
	lists := at.Verb == "list" && at.Resource == "wangellservices" && at.Group == v1alpha1.GroupVersion.Group
	r.Status.Allowed = r.Spec.User == "root" || slices.Contains(r.Spec.Groups, "reds") && lists && at.Namespace == "red" ||
		r.Spec.User == "ann" && lists && (at.Namespace == "team" || at.Namespace == "later") ||
		r.Spec.User == "bob" && at.Namespace == "team"
	return true, r, nil
}

func (c *cluster) config(change func(*rest.Config)) *rest.Config {
	r := &rest.Config{Host: c.url, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	change(r)
	return r
}

// as returns a client with the token of a user.
func (c *cluster) as(user, namespace string) *httpapi.Client {
	return c.client(c.config(func(r *rest.Config) { r.BearerToken = "token-" + user }), namespace)
}

func (c *cluster) client(r *rest.Config, namespace string) *httpapi.Client {
	c.t.Helper()
	client, err := NewClient(r, ours, namespace)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(client.Close)
	return client
}

// names returns the services that a client sees, or the error.
func names(client *httpapi.Client) string {
	all, err := client.Status(context.Background())
	if err != nil {
		return "error: " + err.Error()
	}
	var out []string
	for _, s := range all {
		out = append(out, s.Service.Namespace+"/"+s.Service.Name)
	}
	return strings.Join(out, " ")
}

func TestUsersSeeTheNamespacesThatTheyMayList(t *testing.T) {
	c := newCluster(t)
	for _, e := range []struct{ user, namespace, want string }{
		{"root", "", "red/a red/b team/a team/c"},
		{"root", "red", "red/a red/b"},
		{"ann", "", "team/a team/c"},
		{"ann", "team", "team/a team/c"},
		{"ann", "red", `error: user "ann" cannot list wangellservices.wangell.loutres.me in the namespace "red"`},
		{"eve", "", ""},
	} {
		if got := names(c.as(e.user, e.namespace)); got != e.want {
			t.Errorf("%s in %q: %s, want %s", e.user, e.namespace, got, e.want)
		}
	}
	ctx := t.Context()
	ann := c.as("ann", "")
	if wakes, err := ann.Wakes(ctx, ""); err != nil || len(wakes) != 1 || wakes[0].Service != "team/a" {
		t.Errorf("%v, %v", wakes, err)
	}
	if wakes, err := ann.Wakes(ctx, "a"); err != nil || len(wakes) != 1 {
		t.Errorf("a name that is unambiguous among the visible ones: %v, %v", wakes, err)
	}
	if _, err := c.as("root", "").Wakes(ctx, "a"); err == nil || !strings.Contains(err.Error(), "there are several") {
		t.Errorf("%v", err)
	}
	// What is there, and what is not, looks the same from outside.
	_, there := ann.Wakes(ctx, "red/a")
	_, missing := ann.Wakes(ctx, "red/x")
	if there == nil || missing == nil || there.Error() != missing.Error() {
		t.Errorf("%v and %v", there, missing)
	}
	if p, err := ann.Pressure(ctx); err != nil || len(p) != 0 {
		t.Errorf("pressure of nodes: %v, %v", p, err)
	}
	if p, err := c.as("root", "").Pressure(ctx); err != nil || len(p) != 1 {
		t.Errorf("pressure of nodes: %v, %v", p, err)
	}
}

func TestSleepAndLogsNeedRightsOfTheirOwn(t *testing.T) {
	c := newCluster(t)
	ctx := t.Context()
	ann, bob := c.as("ann", "team"), c.as("bob", "team")
	var refused *httpapi.Error
	if err := ann.Sleep(ctx, "team/a"); !errors.As(err, &refused) || refused.Code != http.StatusForbidden ||
		err.Error() != `user "ann" cannot put services to sleep (patch wangellservices/scale) in the namespace "team"` {
		t.Errorf("%v", err)
	}
	if err := ann.Logs(ctx, "team/a", io.Discard, runtime.LogOptions{Tail: -1}); !errors.As(err, &refused) ||
		refused.Code != 403 {
		t.Errorf("%v", err)
	}
	if c.services.slept.Load() != nil {
		t.Error("it was put to sleep")
	}
	if err := bob.Sleep(ctx, "team/a"); err != nil || c.services.slept.Load() != v1alpha1.Key("team/a") {
		t.Errorf("%v, %v", err, c.services.slept.Load())
	}
	var log bytes.Buffer
	if err := bob.Logs(ctx, "team/a", &log, runtime.LogOptions{Tail: -1}); err != nil ||
		log.String() != "log of team/a\n" {
		t.Errorf("%q, %v", log.String(), err)
	}
	if err := bob.Sleep(ctx, "red/a"); !errors.As(err, &refused) || refused.Code != http.StatusForbidden {
		t.Errorf("%v", err)
	}
}

// Whoever may scale a service may keep it awake. It stays so until the client releases it, or the controller goes.
func TestServicesAreHeldByThoseWhoMayWakeThem(t *testing.T) {
	c := newCluster(t)
	var refused *httpapi.Error
	if _, _, _, err := c.as("ann", "team").Hold(t.Context(), "team/a", ""); !errors.As(err, &refused) ||
		err.Error() != `user "ann" cannot keep services awake (patch wangellservices/scale) in the namespace "team"` {
		t.Errorf("%v", err)
	}
	bob := c.as("bob", "team")
	st, ended, release, err := bob.Hold(t.Context(), "team/a", "")
	if err != nil || st.Service.Name != "a" || c.services.held.Load() != 1 {
		t.Fatalf("%v, %v, held %d", st.Service.Name, err, c.services.held.Load())
	}
	release()
	<-ended
	for end := time.Now().Add(time.Minute); c.services.held.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is held for a client that has gone")
		}
	}
	if err := HasPods(t.Context(), bob, "team", "a"); err != nil {
		t.Error(err)
	}
	if err := HasPods(t.Context(), bob, "team", "z"); err == nil || err.Error() != `service "team/z": not found` {
		t.Errorf("%v", err)
	}
}

func TestEventsOfOtherNamespacesAreNotHeard(t *testing.T) {
	c := newCluster(t)
	for _, s := range []v1alpha1.Key{"red/a", "", "team/a"} {
		c.services.events <- status.Event{Kind: status.EventReport, Service: s, Node: "node-1"}
	}
	close(c.services.events)
	var got []v1alpha1.Key
	err := c.as("ann", "").Events(t.Context(), nil, func(e status.Event) { got = append(got, e.Service) })
	if err != nil || !slices.Equal(got, []v1alpha1.Key{"team/a"}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	c := newCluster(t)
	cert, key := newAuthority(t).issue(t, "root", "system:masters")
	for name, e := range map[string]struct {
		change func(*rest.Config)
		want   string
	}{
		"without credentials": {func(*rest.Config) {}, "no bearer token and no client certificate"},
		"with a wrong token":  {func(r *rest.Config) { r.BearerToken = "stolen" }, "does not accept the token"},
		"with a certificate of another authority": {func(r *rest.Config) { r.CertData, r.KeyData = cert, key },
			"signed by unknown authority"},
		"with a password": {func(r *rest.Config) { r.Username, r.Password = "root", "x" }, "want a bearer token"},
	} {
		client := c.client(c.config(e.change), "")
		_, err := client.Status(t.Context())
		var refused *httpapi.Error
		if !errors.As(err, &refused) || refused.Code != http.StatusUnauthorized || !strings.Contains(err.Error(), e.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := client.Sleep(t.Context(), "team/a"); !errors.As(err, &refused) || refused.Code != http.StatusUnauthorized {
			t.Errorf("%s: sleep: %v", name, err)
		}
	}
	if c.services.slept.Load() != nil {
		t.Error("it was put to sleep")
	}
	if _, err := NewClient(c.config(func(r *rest.Config) { r.Impersonate.UserName = "root" }), ours, ""); err == nil ||
		!strings.Contains(err.Error(), "--as") {
		t.Errorf("impersonation: %v", err)
	}
	const far = `you may not reach the controller: services "wangell-api:api"`
	if got := names(c.as("far", "")); !strings.Contains(got, far) || !strings.Contains(got, "api.users") {
		t.Errorf("who may not use the proxy: %s", got)
	}
}

func TestClientCertificatesAreAccepted(t *testing.T) {
	c := newCluster(t)
	cert, key := c.ca.issue(t, "carl", "reds", "others")
	got := names(c.client(c.config(func(r *rest.Config) { r.CertData, r.KeyData = cert, key }), ""))
	if got != "red/a red/b" {
		t.Error(got)
	}
}

// The credentials must not leave for anything but the leader.
func TestOtherControllerGetsNoToken(t *testing.T) {
	c := newCluster(t)
	c.lease.Labels[v1alpha1.LabelCertificate] = "of-another-controller"
	if got := names(c.as("root", "")); !strings.Contains(got, "leading controller: not the expected certificate") {
		t.Error(got)
	}
	if n := c.reviews.Load(); n != 0 {
		t.Errorf("%d tokens were shown", n)
	}
}

func TestControllerThatDoesNotLeadSaysSo(t *testing.T) {
	c := newCluster(t)
	c.leads.Store(false)
	if got := names(c.as("root", "")); got != "error: this controller no longer leads: try again in a moment" {
		t.Error(got)
	}
	nobody := ""
	c.lease.Spec.HolderIdentity = &nobody
	if got := names(c.as("root", "")); !strings.Contains(got, "no controller leads at the moment") {
		t.Error(got)
	}
	delete(c.lease.Labels, v1alpha1.LabelCertificate)
	holder := "controller-1/127.0.0.1:7946"
	c.lease.Spec.HolderIdentity = &holder
	if got := names(c.as("root", "")); !strings.Contains(got, "has no API for people") {
		t.Error(got)
	}
	client, err := NewClient(c.config(func(*rest.Config) {}), Controller{"elsewhere", "wg"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := names(client); !strings.Contains(got, "has no Wangell controller elsewhere/wg") {
		t.Error(got)
	}
}

// The API server is asked once in a while, not for each request.
func TestReviewsAreKeptForSeconds(t *testing.T) {
	c := newCluster(t)
	ann := c.as("ann", "")
	for range 20 {
		names(ann)
	}
	if n := c.reviews.Load(); n < 1 || n > 5 {
		t.Errorf("%d reviews of one token", n)
	}
}
