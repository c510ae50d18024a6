// SPDX-License-Identifier: Apache-2.0

// Package access serves the API of package httpapi to the users of a cluster, with the rights that the cluster
// grants them.
//
// The connections come through the API server (package tunnel) to any controller, and end at the leading one. In them
// runs TLS 1.3 with the certificate whose fingerprint the leader's Lease has. A client proves who it is as it does to
// the API server: by a bearer token (TokenReview) or a client certificate of the cluster's authority. The API server
// decides what it may see and do in each namespace (SubjectAccessReview). A client sees the services of the
// namespaces in which it may list WangellServices.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/internal/base/quota"
	"wangell.loutres.me/internal/kube/tunnel"
	"wangell.loutres.me/internal/show/httpapi"
)

const (
	maxToken = 16 << 10
	// caLasts is how long the cluster's authority of client certificates is used.
	caLasts = time.Minute

	groupAuthenticated = "system:authenticated"
)

// Names of the ConfigMap where API servers publish the authority of client certificates, for servers like this one.
const (
	caNamespace = "kube-system"
	caConfigMap = "extension-apiserver-authentication"
	caKey       = "client-ca-file"
)

// errLimit is returned for reviews beyond the limit of requests to the API server.
var errLimit = &httpapi.Error{
	Code: http.StatusTooManyRequests, Text: "too many requests of people at once: try again in a moment",
}

// identities finds out who sends requests.
type identities struct {
	api kubernetes.Interface
	now func() time.Time
	// clients and peers bound the load that strangers cause on the API server: by the client that a tunnel names, and by
	// the address that has connected.
	clients, peers *quota.Sources

	tokens cache[[sha256.Size]byte, *authenticationv1.UserInfo]

	mu      sync.Mutex
	roots   *x509.CertPool
	rootsAt time.Time
}

// of returns the user who sent a request. Its errors are *httpapi.Error.
func (i *identities) of(r *http.Request) (*authenticationv1.UserInfo, error) {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return nil, forbidden("the controller accepts no impersonation (--as): use credentials of the user itself")
		}
	}
	if h := r.Header.Get("Authorization"); h != "" {
		token, ok := strings.CutPrefix(h, "Bearer ")
		if !ok || token == "" || len(token) > maxToken {
			return nil, unauthorized("want a bearer token of at most %d bytes", maxToken)
		}
		return i.ofToken(r.Context(), token, r.RemoteAddr)
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return i.ofCertificate(r.Context(), r.TLS.PeerCertificates)
	}
	return nil, unauthorized("no bearer token and no client certificate: the kubeconfig must have one of them")
}

// ofToken asks the API server for the user of a token that came from an address.
func (i *identities) ofToken(ctx context.Context, token, remote string) (*authenticationv1.UserInfo, error) {
	sum := sha256.Sum256([]byte(token))
	user, err := i.tokens.get(sum, i.now(), func() (*authenticationv1.UserInfo, error) {
		client, peer := tunnel.Origin(remote)
		if now := i.now(); !i.clients.Take(client, now) || !i.peers.Take(peer, now) {
			return nil, errLimit
		}
		review, err := i.api.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, unavailable("review of the token", err)
		}
		if !review.Status.Authenticated {
			return nil, nil
		}
		return &review.Status.User, nil
	})
	if err == nil && user == nil {
		return nil, unauthorized("the API server does not accept the token")
	}
	return user, err
}

// ofCertificate returns the user of a client certificate, as the API server does: the common name is the user's, the
// organizations are groups.
func (i *identities) ofCertificate(ctx context.Context, chain []*x509.Certificate) (*authenticationv1.UserInfo, error) {
	roots, err := i.authority(ctx)
	if err != nil {
		return nil, err
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	leaf := chain[0]
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: i.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, unauthorized("client certificate: %v", err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, unauthorized("client certificate: it has no common name, which is the user's name")
	}
	return &authenticationv1.UserInfo{
		Username: leaf.Subject.CommonName,
		Groups:   append(slices.Clone(leaf.Subject.Organization), groupAuthenticated),
	}, nil
}

// authority returns the cluster's authority of client certificates.
func (i *identities) authority(ctx context.Context) (*x509.CertPool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.roots != nil && i.now().Sub(i.rootsAt) < caLasts {
		return i.roots, nil
	}
	m, err := i.api.CoreV1().ConfigMaps(caNamespace).Get(ctx, caConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, unavailable("authority of client certificates", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.Data[caKey])) {
		return nil, unauthorized("this API server accepts no client certificates (ConfigMap %s/%s has no %s)",
			caNamespace, caConfigMap, caKey)
	}
	i.roots, i.rootsAt = roots, i.now()
	return roots, nil
}

func unauthorized(format string, args ...any) error {
	return &httpapi.Error{Code: http.StatusUnauthorized, Text: fmt.Sprintf(format, args...)}
}

func forbidden(format string, args ...any) error {
	return &httpapi.Error{Code: http.StatusForbidden, Text: fmt.Sprintf(format, args...)}
}

// unavailable is the error of a request to the API server.
func unavailable(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &httpapi.Error{Code: http.StatusServiceUnavailable, Text: fmt.Sprintf("%s: %v", what, err)}
}
