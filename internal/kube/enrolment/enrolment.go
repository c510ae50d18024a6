// SPDX-License-Identifier: Apache-2.0

// Package enrolment gives each daemon of a cluster the key of its own node, and no other.
//
// The leading controller serves it over TLS 1.3. A daemon shows a service-account token, which names the node of its
// pod, and the API server vouches for the token (Reviewer). The controller's certificate is its own; daemons recognise
// it by a fingerprint that only controllers can publish.
package enrolment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"wangell.loutres.me/internal/wire"
)

// Audience is the audience of the tokens.
const Audience = "wangell"

const (
	// path is the path of the only resource.
	path = "/v1/node-key"

	maxBody  = 16 << 10 // of a request, and of an answer
	maxToken = 12 << 10
	maxNode  = 253
)

// Keys are the secrets that a daemon gets.
type Keys struct {
	// Node seals the wire between this node's daemon and the controllers.
	Node wire.Key `json:"node"`
	// Proof is the key of the gates' challenges, the same on all nodes.
	Proof wire.Key `json:"proof"`
}

// KeysOf derives the keys of a node from the master key of the wire.
func KeysOf(master wire.Key, node string) Keys {
	return Keys{Node: master.ForNode(node), Proof: master.Derive("proof")}
}

// request asks for the keys of a node.
type request struct {
	Node  string `json:"node"`
	Token string `json:"token"`
}

// answer has the keys, or says why there are none.
type answer struct {
	Keys  *Keys  `json:"keys,omitempty"`
	Error string `json:"error,omitempty"`
}

var errMalformed = errors.New("malformed request")

// readRequest reads a request. Its errors wrap errMalformed.
func readRequest(r io.Reader) (request, error) {
	var q request
	if err := readJSON(r, &q); err != nil {
		return request{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	switch {
	case q.Node == "" || len(q.Node) > maxNode || !utf8.ValidString(q.Node) || strings.ContainsFunc(q.Node, isControl):
		return request{}, fmt.Errorf("%w: node: want a name of 1 to %d bytes", errMalformed, maxNode)
	case q.Token == "" || len(q.Token) > maxToken || strings.ContainsFunc(q.Token, notOfToken):
		return request{}, fmt.Errorf("%w: token: want a service-account token of at most %d bytes", errMalformed, maxToken)
	}
	return q, nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// notOfToken reports whether a character cannot be part of a JSON Web Token.
func notOfToken(r rune) bool {
	ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.=+/~", r)
	return !ok
}

// readJSON reads one JSON object of at most maxBody bytes, without unknown fields.
func readJSON(r io.Reader, into any) error {
	body, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err != nil {
		return err
	}
	if len(body) > maxBody {
		return fmt.Errorf("more than %d bytes", maxBody)
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		// The text of the error may repeat what was sent.
		return errors.New("not the JSON object that is expected")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}
