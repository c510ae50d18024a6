// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStatementNamesTheFilesAndTheCommit(t *testing.T) {
	t.Chdir("../..")
	file := filepath.Join(t.TempDir(), "wangell_1.2.3.tar.gz")
	if err := os.WriteFile(file, []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{version: "1.2.3", commit: "abc", seconds: 7, image: "registry.example/wangell@sha256:12", builder: "me",
		architectures: "amd64"}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, o, []string{file}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("two statements of the same files differ")
	}
	var got struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		PredicateType string
		Predicate     struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
			RunDetails struct{ Builder struct{ ID string } }
		}
	}
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	const hello = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03" // of sha256sum
	if got.Type != "https://in-toto.io/Statement/v1" || got.PredicateType != "https://slsa.dev/provenance/v1" ||
		len(got.Subject) != 2 || got.Subject[0].Name != "wangell_1.2.3.tar.gz" || got.Subject[0].Digest["sha256"] != hello ||
		got.Subject[1].Name != "registry.example/wangell" || got.Subject[1].Digest["sha256"] != "12" ||
		got.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != "abc" ||
		got.Predicate.RunDetails.Builder.ID != "me" {
		t.Errorf("%s", first.String())
	}
	o.image = "registry.example/wangell:v1"
	if err := run(&first, o, []string{file}); err == nil {
		t.Error("an image without a digest")
	}
}

// A signature is Base64 of what ECDSA gives for the SHA-256 of the file, which cosign and openssl verify.
func TestSignatureVerifies(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "SHA256SUMS")
	if err := os.WriteFile(file, []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte, err error) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	inPKCS8 := write("a.pem", "PRIVATE KEY", pkcs8, err)
	sec1, err := x509.MarshalECPrivateKey(key)
	inSEC1 := write("b.pem", "EC PRIVATE KEY", sec1, err)
	for _, keyFile := range []string{inPKCS8, inSEC1} {
		if err := run(nil, options{sign: file, key: keyFile}, nil); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file + ".sig")
		if err != nil {
			t.Fatal(err)
		}
		signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
		sum := sha256.Sum256([]byte("hello\n"))
		if err != nil || !ecdsa.VerifyASN1(&key.PublicKey, sum[:], signature) {
			t.Errorf("%s: signature %s, %v", keyFile, text, err)
		}
	}
	wrong, err := x509.MarshalPKCS8PrivateKey(other)
	for want, keyFile := range map[string]string{
		"P-256":              write("c.pem", "PRIVATE KEY", wrong, err),
		"ENCRYPTED SIGSTORE": write("d.pem", "ENCRYPTED SIGSTORE PRIVATE KEY", []byte("x"), nil),
		"has no private key": file,
		"give --key":         filepath.Join(dir, "none"),
	} {
		if err := run(nil, options{sign: file, key: keyFile}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", keyFile, err, want)
		}
	}
}
