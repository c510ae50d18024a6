// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"path/filepath"
	"time"
)

// authority is a CA for P-256 keys. It writes certificates and keys to a folder as NAME.crt and NAME.key.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// certRequest describes the subject of a certificate. Without names and addresses it is a client certificate.
type certRequest struct {
	file      string
	user      string
	groups    []string
	names     []string
	addresses []netip.Addr
}

// newAuthority creates a CA whose certificate is dir/NAME.crt.
func newAuthority(dir, name string) (*authority, error) {
	a := &authority{dir: dir}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template(name, nil)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	a.key, a.cert = key, t
	if a.cert, err = a.sign(name, t, key); err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", name, err)
	}
	return a, nil
}

func template(user string, groups []string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups},
		// An hour earlier, for clocks that are slightly wrong.
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
	}
}

// issue creates a key and a certificate.
func (a *authority) issue(r certRequest) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := template(r.user, r.groups)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(r.names)+len(r.addresses) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	t.DNSNames = r.names
	for _, ip := range r.addresses {
		t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
	}
	if _, err := a.sign(r.file, t, key); err != nil {
		return fmt.Errorf("certificate %s: %w", r.file, err)
	}
	return nil
}

// sign signs a certificate and writes it and its key.
func (a *authority) sign(file string, t *x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	if err := writePEM(filepath.Join(a.dir, file+".crt"), "CERTIFICATE", der); err != nil {
		return nil, err
	}
	if err := writeKey(filepath.Join(a.dir, file+".key"), key); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return writeFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// makePKI creates all keys and certificates of a cluster in its pki folder.
func makePKI(p plan) error {
	dir := filepath.Join(p.Dir, "pki")
	ca, err := newAuthority(dir, "ca")
	if err != nil {
		return err
	}
	front, err := newAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := front.issue(certRequest{file: "front-proxy-client", user: "front-proxy-client"}); err != nil {
		return err
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	requests := []certRequest{
		{file: "apiserver", user: "kube-apiserver",
			names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local", "localhost"},
			addresses: []netip.Addr{p.ControlIP, p.kubernetesIP(), loopback}},
		{file: "apiserver-kubelet-client", user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		{file: "admin", user: "kubernetes-admin", groups: []string{"system:masters"}},
		{file: "controller-manager", user: "system:kube-controller-manager"},
		{file: "scheduler", user: "system:kube-scheduler"},
		{file: "kube-proxy", user: "system:kube-proxy"},
		{file: "flannel", user: "flannel"},
		{file: "cilium", user: "cilium"},
	}
	for _, n := range p.Nodes {
		requests = append(requests, certRequest{file: n.Name, user: "system:node:" + n.Name, groups: []string{"system:nodes"},
			names: []string{n.Name}, addresses: []netip.Addr{n.IP}})
	}
	for _, r := range requests {
		if err := ca.issue(r); err != nil {
			return err
		}
	}
	// Tokens of service accounts are signed with this key and verified with its public half.
	sa, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, "sa.key"), sa); err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(sa.Public())
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", der); err != nil {
		return err
	}
	for _, user := range []string{"controller-manager", "scheduler", "kube-proxy", "flannel", "cilium"} {
		if err := writeKubeconfig(p, user, user+".conf", p.apiServer()); err != nil {
			return err
		}
	}
	for _, n := range p.Nodes {
		if err := writeKubeconfig(p, n.Name, n.Name+".conf", p.apiServer()); err != nil {
			return err
		}
	}
	return writeKubeconfig(p, "admin", "admin-lan.conf", p.apiServer())
}

// writeKubeconfig writes a kubeconfig for a certificate in the pki folder. It contains the keys, so that no other file
// is needed.
func writeKubeconfig(p plan, cert, file, server string) error {
	dir := filepath.Join(p.Dir, "pki")
	data, err := readAll(filepath.Join(dir, "ca.crt"), filepath.Join(dir, cert+".crt"), filepath.Join(dir, cert+".key"))
	if err != nil {
		return err
	}
	// JSON is valid YAML, so client-go reads it.
	return writeKeyFile(filepath.Join(p.Dir, file), map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": p.Name,
		"clusters": []any{map[string]any{"name": p.Name,
			"cluster": map[string]any{"server": server, "certificate-authority-data": data[0]}}},
		"users": []any{map[string]any{"name": cert,
			"user": map[string]any{"client-certificate-data": data[1], "client-key-data": data[2]}}},
		"contexts": []any{map[string]any{"name": p.Name, "context": map[string]any{"cluster": p.Name, "user": cert}}},
	})
}
