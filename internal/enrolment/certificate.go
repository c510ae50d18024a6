// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// LabelCertificate is the label of the leader's Lease with the fingerprint of its certificate. It is a label because
// leader election writes labels in the same request as the holder of the Lease.
const LabelCertificate = "wangell.loutres.me/certificate"

// NewCertificate makes a self-signed certificate for one process. Its fingerprint, not its dates, says whether it is
// valid.
func NewCertificate(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key of the enrolment certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "wangell controller"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("enrolment certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Fingerprint returns the SHA-256 of a certificate in base32, which fits the value of a label.
func Fingerprint(c tls.Certificate) string { return fingerprint(c.Certificate[0]) }

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// pinned returns a TLS configuration of a client that accepts the certificate with this fingerprint only.
func pinned(want string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// There is no authority to ask: VerifyConnection compares the fingerprint instead.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			got := fingerprint(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
				return fmt.Errorf("%w: its fingerprint is %s, and the Lease has %s", errCertificate, got, want)
			}
			return nil
		},
	}
}

var errCertificate = errors.New("the certificate is not that of the leading controller")
