// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	authenticationv1 "k8s.io/api/authentication/v1"

	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/wire"
)

var master = wire.Key{0: 1, 31: 2}

// served is a running Server.
type served struct {
	*Server
	at  Endpoint
	log *bytes.Buffer // read it after end
	end func()
}

// serve starts a Server for which a token "NODE.token" is of that node.
func serve(t *testing.T) *served {
	t.Helper()
	return serveAt(t, nil)
}

// serveAt is serve with a clock for the limit of requests; nil is the real one.
func serveAt(t *testing.T, now func() time.Time) *served {
	t.Helper()
	certificate, err := pin.NewCertificate("wangell controller", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &served{log: &bytes.Buffer{}}
	s.Server = &Server{
		now: now, Master: master, Certificate: certificate, Log: slog.New(slog.NewTextHandler(s.log, nil)),
		Results: NewResults(),
		Node: func(_ context.Context, token string) (string, error) {
			node, ok := strings.CutSuffix(token, ".token")
			switch {
			case token == "away.token":
				return "", errors.New("internal: etcd at 10.0.0.1 is away")
			case !ok:
				return "", errToken
			}
			return node, nil
		},
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.at = Endpoint{l.Addr().String(), pin.Fingerprint(certificate)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	ended := false
	s.end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(s.end)
	return s
}

// count returns how many requests had a result.
func (s *served) count(t *testing.T, result string) int {
	t.Helper()
	var m dto.Metric
	if err := s.Results.WithLabelValues(result).Write(&m); err != nil {
		t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

func TestEachNodeGetsItsOwnKey(t *testing.T) {
	s := serve(t)
	for _, node := range []string{"node-1", "node-2"} {
		got, err := Ask(t.Context(), s.at, node, node+".token")
		if err != nil || got != KeysOf(master, node) || got.Node != master.ForNode(node) {
			t.Errorf("%s: %v", node, err)
		}
	}
	if s.count(t, resultOK) != 2 {
		t.Error("they are not counted")
	}
}

func TestProofKeyIsTheOneOfFormerVersions(t *testing.T) {
	k := KeysOf(master, "node-1").Proof
	if got := hex.EncodeToString(k[:]); got != "2af076d9debec56a2abbc44826db010c0fdbc0f43a9d51465e9e4ed4ba3f70b1" {
		t.Errorf("proof key %s: nodes that are upgraded would not understand each other's challenges", got)
	}
}

func TestRefusals(t *testing.T) {
	s := serve(t)
	for result, c := range map[string]struct {
		q    request
		want string
	}{
		resultToken: {request{"node-1", "forged"}, "401 Unauthorized: the API server does not accept the token"},
		resultNode: {request{"node-2", "node-1.token"},
			`403 Forbidden: the token is of another node: it is of "node-1"`},
		resultAPI:       {request{"away", "away.token"}, "503 Service Unavailable: the API server did not answer"},
		resultMalformed: {request{"", "x"}, "400 Bad Request: malformed request: node: want a name"},
	} {
		_, err := Ask(t.Context(), s.at, c.q.Node, c.q.Token)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", result, err, c.want)
		}
		if n := s.count(t, result); n != 1 {
			t.Errorf("%s: counted %d times", result, n)
		}
	}
	s.end()
	if log := s.log.String(); !strings.Contains(log, "enrolment refused") || strings.Contains(log, ".token") ||
		strings.Contains(log, "forged") {
		t.Errorf("the log is %s", log)
	}
}

func TestDaemonTalksToTheLeaderOnly(t *testing.T) {
	s, imposter := serve(t), serve(t)
	at := Endpoint{imposter.at.Address, s.at.Fingerprint}
	_, err := Ask(t.Context(), at, "node-1", "node-1.token")
	if !errors.Is(err, pin.ErrMismatch) {
		t.Errorf("somebody in the middle with another certificate: %v", err)
	}
	if imposter.count(t, resultOK) != 0 {
		t.Error("it got a token")
	}
	// One that shows the leader's certificate does not have its key.
	l, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{
		Certificate: s.Certificate.Certificate, PrivateKey: imposter.Certificate.PrivateKey,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(c)
		c.Close()
		got <- b
	}()
	at.Address = l.Addr().String()
	if _, err := Ask(t.Context(), at, "node-1", "node-1.token"); err == nil {
		t.Error("a copied certificate is accepted")
	}
	if b := <-got; len(b) != 0 {
		t.Errorf("it got %d bytes", len(b))
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	s := serve(t)
	config := pin.To(s.at.Fingerprint)
	config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if c, err := tls.Dial("tcp4", s.at.Address, config); err == nil {
		c.Close()
		t.Error("TLS 1.2 is accepted")
	}
}

func TestOtherRequestsAreRefused(t *testing.T) {
	s := serve(t)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: pin.To(s.at.Fingerprint), DisableKeepAlives: true}}
	long := `{"node": "n", "token": "` + strings.Repeat("a", 2*maxBody) + `"}`
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{http.MethodGet, path, "", http.StatusNotFound},
		{http.MethodPost, "/", "{}", http.StatusNotFound},
		{http.MethodPost, path, long, http.StatusBadRequest},
		{http.MethodPost, path, `{"node": "n", "token": "t"} x`, http.StatusBadRequest},
		{http.MethodPost, path, `{"node": "n", "token": "t", "key": 1}`, http.StatusBadRequest},
		{http.MethodPost, path, `{"node": "n\n", "token": "t"}`, http.StatusBadRequest},
		{http.MethodPost, path, `{"node": "n", "token": "a b"}`, http.StatusBadRequest},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "https://"+s.at.Address+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(r)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
			continue
		}
		res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s %s %.40s: %s", c.method, c.path, c.body, res.Status)
		}
	}
}

func TestOneAddressCannotAskAllTheTime(t *testing.T) {
	begin := time.Now()
	s := serveAt(t, func() time.Time { return begin }) // a busy machine may take longer than requests.Pause
	for range requests.Burst {
		if _, err := Ask(t.Context(), s.at, "node-1", "forged"); err == nil {
			t.Fatal("accepted")
		}
	}
	_, err := Ask(t.Context(), s.at, "node-1", "node-1.token")
	if err == nil || !strings.Contains(err.Error(), "429") || s.count(t, resultToken) != requests.Burst {
		t.Errorf("%v; %d looked at", err, s.count(t, resultToken))
	}
}

func TestJudgementOfAReview(t *testing.T) {
	const account = "system:serviceaccount:wangell-system:wangell-daemon"
	good := func() *authenticationv1.TokenReviewStatus {
		return &authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{Audience}, User: authenticationv1.UserInfo{
				Username: account, Extra: map[string]authenticationv1.ExtraValue{
					extraPod: {"wangell-daemon-x"}, extraPodUID: {"u"}, extraNode: {"node-1"},
				},
			},
		}
	}
	if pod, uid, node, err := judge(good(), account); pod != "wangell-daemon-x" || uid != "u" || node != "node-1" ||
		err != nil {
		t.Errorf("%s %s %s %v", pod, uid, node, err)
	}
	for name, c := range map[string]struct {
		change func(*authenticationv1.TokenReviewStatus)
		want   error
	}{
		"not authenticated": {func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, errToken},
		"other audience":    {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"api"} }, errToken},
		"no audience":       {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, errToken},
		"other account":     {func(s *authenticationv1.TokenReviewStatus) { s.User.Username += "x" }, errAccount},
		"no pod":            {func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, extraPod) }, errUnbound},
		"no UID":            {func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, extraPodUID) }, errUnbound},
		"two pods": {func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra[extraPod] = append(s.User.Extra[extraPod], "y")
		}, errUnbound},
	} {
		s := good()
		c.change(s)
		if _, _, node, err := judge(s, account); !errors.Is(err, c.want) || node != "" {
			t.Errorf("%s: node %q, %v", name, node, err)
		}
	}
	s := good()
	delete(s.User.Extra, extraNode)
	if _, _, node, err := judge(s, account); node != "" || err != nil {
		t.Errorf("an API server that does not tell the node: %q, %v", node, err)
	}
}

func TestClientAsksUntilItIsAnswered(t *testing.T) {
	s := serve(t)
	token := filepath.Join(t.TempDir(), "token")
	asked := 0
	c := &Client{Node: "node-1", TokenFile: token, Log: slog.New(slog.DiscardHandler)}
	c.Leader = func(context.Context) (Endpoint, error) {
		switch asked++; asked {
		case 1:
			return Endpoint{}, errors.New("no controller leads")
		case 2: // the token is not there yet
			return s.at, nil
		case 3:
			return s.at, os.WriteFile(token, []byte("node-2.token\n"), 0o600)
		}
		return s.at, os.WriteFile(token, []byte("node-1.token\n"), 0o600)
	}
	got, err := c.Keys(t.Context())
	if err != nil || got != KeysOf(master, "node-1") || asked != 4 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.Leader = func(context.Context) (Endpoint, error) { cancel(); return Endpoint{}, errors.New("away") }
	if _, err := c.Keys(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"node": "node-1", "token": "a.b-c_d"}`, `{"node": "", "token": "a"}`, `{"node": "n"}`, `[]`, `{`, `null`, ``,
		`{"node": "n", "token": "t"} {}`, `{"node": "n", "token": "t", "x": 1}`, `{"node": 7, "token": "t"}`,
		fmt.Sprintf(`{"node": %q, "token": "t"}`, strings.Repeat("n", maxNode+1)),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := readRequest(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, errMalformed) || q != (request{}) {
				t.Fatalf("%v: %+v", err, q)
			}
			return
		}
		if q.Node == "" || len(q.Node) > maxNode || q.Token == "" || len(q.Token) > maxToken {
			t.Fatalf("%+v", q)
		}
		again, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := readRequest(bytes.NewReader(again)); err != nil || twice != q {
			t.Fatalf("%+v comes back as %+v (%v)", q, twice, err)
		}
	})
}
