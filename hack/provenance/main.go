// SPDX-License-Identifier: Apache-2.0

// Command provenance writes where the files of a release come from, as an in-toto statement with the predicate SLSA
// Provenance v1 (https://slsa.dev/spec/v1.1/provenance), and signs files so that cosign verifies them without a network.
// The same files, commit and Go release give the same statement: it has no time and no machine.
//
//	go run ./hack/provenance --version 0.3.0 --commit HASH --time 1750000000 --image NAME@sha256:... FILE...
//	go run ./hack/provenance --sign FILE --key KEY.pem
//
// The key is one of ECDSA on P-256 in PEM (PKCS #8 or SEC 1), as "openssl genpkey -algorithm EC -pkeyopt
// ec_paramgen_curve:P-256" makes it. The signature goes to FILE.sig, in Base64.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// options are the flags.
type options struct {
	version, commit, image, builder, architectures, sign, key string
	seconds                                                   int64
}

func main() {
	var o options
	flag.StringVar(&o.version, "version", "", "version of the release (required)")
	flag.StringVar(&o.commit, "commit", "", "hash of its commit; empty: it is built outside of a repository")
	flag.Int64Var(&o.seconds, "time", 0, "SOURCE_DATE_EPOCH of the build")
	flag.StringVar(&o.image, "image", "", "name and digest of the container image")
	flag.StringVar(&o.architectures, "architectures", "amd64 arm64", "what it is built for")
	flag.StringVar(&o.builder, "builder", "https://wangell.loutres.me/builders/make-release", "who builds")
	flag.StringVar(&o.sign, "sign", "", "file to sign")
	flag.StringVar(&o.key, "key", "", "file with the private key")
	flag.Parse()
	if err := run(os.Stdout, o, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "provenance: %v\n", err)
		os.Exit(1)
	}
}

func run(out io.Writer, o options, files []string) error {
	if o.sign != "" {
		return signFile(o.sign, o.key)
	}
	if o.version == "" || len(files) == 0 {
		return errors.New("want --version and the files of the release, or --sign and --key")
	}
	s, err := newStatement(o, files)
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// statement is an in-toto statement: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []artifact `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

// artifact is a ResourceDescriptor of in-toto.
type artifact struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// predicate is SLSA Provenance v1.
type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string         `json:"buildType"`
	ExternalParameters   map[string]any `json:"externalParameters"`
	InternalParameters   map[string]any `json:"internalParameters"`
	ResolvedDependencies []artifact     `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

func newStatement(o options, files []string) (*statement, error) {
	s := &statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range files {
		a, err := artifactOf(f, filepath.Base(f))
		if err != nil {
			return nil, err
		}
		s.Subject = append(s.Subject, a)
	}
	if o.image != "" {
		name, digest, ok := strings.Cut(o.image, "@sha256:")
		if !ok {
			return nil, fmt.Errorf("--image %q: want NAME@sha256:DIGEST", o.image)
		}
		s.Subject = append(s.Subject, artifact{Name: name, Digest: map[string]string{"sha256": digest}})
	}
	definition := &s.Predicate.BuildDefinition
	// RELEASE.md describes the build.
	definition.BuildType = "https://wangell.loutres.me/builds/release/v1"
	definition.ExternalParameters = map[string]any{
		"version": "v" + o.version, "architectures": strings.Fields(o.architectures),
	}
	definition.InternalParameters = map[string]any{"SOURCE_DATE_EPOCH": o.seconds, "command": "make release"}
	if o.commit != "" {
		definition.ResolvedDependencies = append(definition.ResolvedDependencies, artifact{
			URI:    "git+https://wangell.loutres.me/wangell@refs/tags/v" + o.version,
			Digest: map[string]string{"gitCommit": o.commit}})
	}
	definition.ResolvedDependencies = append(definition.ResolvedDependencies,
		artifact{Name: "go", URI: "pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go")})
	for _, name := range []string{"go.sum", "lab/go.sum", "ui/package-lock.json"} { // what else it is built from
		a, err := artifactOf(name, name)
		if err != nil {
			return nil, err
		}
		definition.ResolvedDependencies = append(definition.ResolvedDependencies, a)
	}
	s.Predicate.RunDetails.Builder.ID = o.builder
	return s, nil
}

// artifactOf describes a file under a name.
func artifactOf(file, name string) (artifact, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return artifact{}, err
	}
	sum := sha256.Sum256(b)
	return artifact{Name: name, Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}}, nil
}

// signFile signs the SHA-256 of a file, as "cosign sign-blob --key" does.
func signFile(file, keyFile string) error {
	b, err := os.ReadFile(keyFile)
	if err != nil {
		return fmt.Errorf("the private key: %w: give --key FILE", err)
	}
	key, err := parseKey(b)
	if err != nil {
		return fmt.Errorf("%s: %w", keyFile, err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return err
	}
	return os.WriteFile(file+".sig", []byte(base64.StdEncoding.EncodeToString(signature)+"\n"), 0o644)
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "EC PARAMETERS":
			continue
		case "EC PRIVATE KEY":
			return onP256(x509.ParseECPrivateKey(block.Bytes))
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			ec, _ := key.(*ecdsa.PrivateKey)
			return onP256(ec, err)
		default:
			return nil, fmt.Errorf("is a %s: want an unencrypted key of ECDSA on P-256 in PEM", block.Type)
		}
	}
	return nil, errors.New("has no private key in PEM")
}

func onP256(key *ecdsa.PrivateKey, err error) (*ecdsa.PrivateKey, error) {
	if err == nil && (key == nil || key.Curve != elliptic.P256()) {
		err = errors.New("want a key of ECDSA on P-256, as cosign has them")
	}
	return key, err
}
