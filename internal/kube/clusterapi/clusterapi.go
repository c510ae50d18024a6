// SPDX-License-Identifier: Apache-2.0

// Package clusterapi reaches the controller of a cluster with a user's own kubeconfig: through a tunnel of the API
// server, and with the credentials of that kubeconfig, which this process sends to the leading controller only.
package clusterapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/kube/tunnel"
	"wangell.loutres.me/internal/show/httpapi"
)

// host is the name of the controller in requests. Its certificate is recognised by its fingerprint.
const host = "wangell-controller"

const idleTimeout = 90 * time.Second

// Controller names the controllers of a cluster: the namespace of the chart's release, and its full name, which is that
// of the Lease.
type Controller struct{ Namespace, Name string }

// Target returns the port of the Service by which people reach the controllers.
func (c Controller) Target() tunnel.Target {
	return tunnel.Target{Namespace: c.Namespace, Name: c.Name + "-api", Port: "api"}
}

// Transport returns a transport to the leading controller, at the URL Base. It does not connect yet.
func Transport(c *rest.Config, of Controller) (http.RoundTripper, error) {
	if c.Impersonate.UserName != "" || c.Impersonate.UID != "" || len(c.Impersonate.Groups) > 0 {
		return nil, errors.New("the controller accepts no impersonation (--as): use credentials of the user itself")
	}
	kube, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	dialer, err := tunnel.NewDialer(c, of.Target())
	if err != nil {
		return nil, err
	}
	// The credentials of the kubeconfig: tokens, and client certificates, of files and of other programs.
	own := rest.CopyConfig(c)
	own.Host, own.ServerName, own.Timeout = "https://"+host, "", 0
	own.Insecure, own.CAFile, own.CAData = false, "", nil
	credentials, err := own.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("credentials of the kubeconfig: %w", err)
	}
	credentials.TLS.ServerName = host // without any, there would be no TLS configuration to add to
	certificates, err := transport.TLSConfigFor(credentials)
	if err != nil {
		return nil, fmt.Errorf("credentials of the kubeconfig: %w", err)
	}
	l := &link{of: of, kube: kube, dialer: dialer, certificates: certificates}
	return transport.HTTPWrappersForConfig(credentials, &http.Transport{
		DisableCompression: true, DialTLSContext: l.dial, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 8,
	})
}

// Base returns the URL of the API.
func Base() url.URL { return url.URL{Scheme: "https", Host: host} }

// NewClient returns a client of the leading controller that sees the services of a namespace, or of all if it is
// empty. It does not connect yet.
func NewClient(c *rest.Config, of Controller, namespace string) (*httpapi.Client, error) {
	t, err := Transport(c, of)
	if err != nil {
		return nil, err
	}
	return httpapi.NewRemoteClient(Base(), t, namespace), nil
}

// link makes connections to the leading controller.
type link struct {
	of           Controller
	kube         kubernetes.Interface
	dialer       *tunnel.Dialer
	certificates *tls.Config // has the user's client certificate, if there is one
}

// dial makes a connection to the leader, in TLS.
func (l *link) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	fingerprint, err := l.fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := l.dialer.Dial(ctx)
	if err != nil {
		return nil, l.explain(err)
	}
	// The tunnel has no deadlines.
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	config := pin.To(fingerprint)
	if l.certificates != nil {
		config.Certificates = l.certificates.Certificates
		config.GetClientCertificate = l.certificates.GetClientCertificate
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("leading controller: %w", err)
	}
	return conn, nil
}

// fingerprint returns that of the leader's certificate.
func (l *link) fingerprint(ctx context.Context) (string, error) {
	lease, err := l.kube.CoordinationV1().Leases(l.of.Namespace).Get(ctx, l.of.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("this cluster has no Wangell controller %s/%s: install the chart, or name the release with "+
			"--controller NAMESPACE/NAME", l.of.Namespace, l.of.Name)
	case apierrors.IsForbidden(err):
		return "", l.noReach(err.Error())
	case apierrors.IsUnauthorized(err):
		return "", errCredentials
	case err != nil:
		return "", fmt.Errorf("lease %s/%s of the leading controller: %w", l.of.Namespace, l.of.Name, err)
	}
	if h := lease.Spec.HolderIdentity; h == nil || *h == "" {
		return "", fmt.Errorf("no controller leads at the moment (Lease %s/%s): try again, or see 'kubectl wangell doctor'",
			l.of.Namespace, l.of.Name)
	}
	f := lease.Labels[v1alpha1.LabelCertificate]
	if f == "" {
		return "", fmt.Errorf("the leading controller of the Lease %s/%s has no API for people: upgrade it, or set "+
			"api.enabled in the chart", l.of.Namespace, l.of.Name)
	}
	return f, nil
}

// explain adds what to do about an error of the tunnel.
func (l *link) explain(err error) error {
	var refused *tunnel.Refused
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case http.StatusUnauthorized:
		return errCredentials
	case http.StatusForbidden:
		return l.noReach(message(refused.Text))
	case http.StatusNotFound:
		return fmt.Errorf("the controller %s/%s has no API for people (%s): upgrade it, or set api.enabled in the chart",
			l.of.Namespace, l.of.Name, message(refused.Text))
	}
	return fmt.Errorf("controller %s/%s: %s", l.of.Namespace, l.of.Name, message(refused.Text))
}

var errCredentials = errors.New("the API server does not accept the credentials of the kubeconfig: log in again")

// noReach returns the error for users who may not reach the controller.
func (l *link) noReach(why string) error {
	return fmt.Errorf("you may not reach the controller: %s. Ask an administrator to add you, or your group, to "+
		"api.users of the chart", why)
}
