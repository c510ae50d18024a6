// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/internal/show/httpapi"
)

// newLimited returns a server whose API server knows token-NAME as a token of the user NAME, at a standing clock.
func newLimited() *Server {
	api := fake.NewClientset()
	api.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, kuberuntime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if len(r.Spec.Token) > 6 && r.Spec.Token[:6] == "token-" {
			r.Status.Authenticated, r.Status.User.Username = true, r.Spec.Token[6:]
		}
		return true, r, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, kuberuntime.Object, error) {
		return true, nil, errors.New("not here")
	})
	s := New(Config{API: api, Log: slog.New(slog.DiscardHandler)})
	begin := time.Now()
	s.identities.now = func() time.Time { return begin }
	return s
}

// ask returns the status of a request for the user of a token: 200, 401 or 429.
func ask(s *Server, remote, token string) int {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	r.Header.Set("Authorization", "Bearer "+token)
	_, err := s.identities.of(r)
	var refused *httpapi.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return http.StatusOK
}

// Whoever makes the controller review invented tokens, from one client of the API server or from a pod that claims to
// be many clients, keeps nobody else from being reviewed.
func TestStrangersLeaveReviewsToOthers(t *testing.T) {
	const apiServer = " by 192.0.2.1"
	s := newLimited()
	reviewed := func(remote func(int) string) (n int) {
		for i := range 1000 {
			switch code := ask(s, remote(i), fmt.Sprint("invented", remote(i), i)); code {
			case http.StatusUnauthorized:
				n++
			case http.StatusTooManyRequests:
			default:
				t.Fatalf("status %d", code)
			}
		}
		return n
	}
	if n := reviewed(func(int) string { return "198.51.100.66" + apiServer }); n != clientReviews.Burst {
		t.Errorf("%d reviews for one client, want %d", n, clientReviews.Burst)
	}
	if code := ask(s, "198.51.100.7"+apiServer, "token-ann"); code != http.StatusOK {
		t.Errorf("another client of the API server: status %d", code)
	}
	if n := reviewed(func(i int) string { return fmt.Sprintf("10.9.%d.%d by 10.1.0.9", i/250, i%250) }); n !=
		peerReviews.Burst {
		t.Errorf("%d reviews for one address, want %d", n, peerReviews.Burst)
	}
	if code := ask(s, "198.51.100.7"+apiServer, "token-bob"); code != http.StatusOK {
		t.Errorf("a client of the API server: status %d", code)
	}
}

func TestAUserLeavesDashboardsToOthers(t *testing.T) {
	s := newLimited()
	for range maxBoards {
		if !s.streams.Take("ann") {
			t.Fatal("refused")
		}
	}
	services := struct{ Services }{}
	get := func(user string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/api/stream", nil)
		r.RemoteAddr = "192.0.2.1:5"
		r.Header.Set("Authorization", "Bearer token-"+user)
		s.cfg.Services = func() Services { return services }
		s.guard(s.dashboard(false)).ServeHTTP(w, r)
		return w.Code
	}
	if code := get("ann"); code != http.StatusTooManyRequests {
		t.Errorf("one more dashboard of the same user: status %d", code)
	}
	if code := get("bob"); code != http.StatusServiceUnavailable { // it reaches the rights
		t.Errorf("a dashboard of another user: status %d", code)
	}
	if !s.streams.Take("bob") {
		t.Error("bob's dashboard still counts")
	}
}
