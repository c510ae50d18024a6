// SPDX-License-Identifier: Apache-2.0

// Package pin makes and checks TLS certificates that are valid by their fingerprint alone: no authority signs them, and
// clients learn the fingerprint by another way that they trust.
package pin

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

// NewCertificate makes a self-signed certificate for one process, with a descriptive name. Its fingerprint, not its
// name or dates, decides whether it is valid.
func NewCertificate(name string, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key of the certificate of the %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of the %s: %w", name, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Fingerprint returns the SHA-256 of a certificate in base32, which fits the value of a label.
func Fingerprint(c tls.Certificate) string { return inBase32(Sum(c)) }

// Sum returns the SHA-256 of a certificate.
func Sum(c tls.Certificate) [sha256.Size]byte { return sha256.Sum256(c.Certificate[0]) }

func inBase32(sum [sha256.Size]byte) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// To returns a TLS configuration of a client that accepts the certificate with this Fingerprint only.
func To(want string) *tls.Config {
	return Checked(func(sum [sha256.Size]byte) error {
		got := inBase32(sum)
		if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
			return fmt.Errorf("%w: its fingerprint is %s, want %s", ErrMismatch, got, want)
		}
		return nil
	})
}

// Checked returns a TLS configuration of a client that accepts the certificates for whose SHA-256 accept returns nil.
func Checked(accept func(sum [sha256.Size]byte) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// There is no certificate authority: VerifyConnection checks the fingerprint instead.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			return accept(sha256.Sum256(s.PeerCertificates[0].Raw))
		},
	}
}

// ErrMismatch is the error of a client that was shown another certificate.
var ErrMismatch = errors.New("not the expected certificate")
