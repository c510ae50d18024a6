// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/wire"
)

// Pauses between two requests of a daemon.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 10 * time.Second
)

// Endpoint is where the leading controller serves enrolment, and the fingerprint of its certificate.
type Endpoint struct{ Address, Fingerprint string }

// Client asks for the keys of a node.
type Client struct {
	Node      string
	TokenFile string
	// Leader returns the endpoint of the leading controller.
	Leader func(context.Context) (Endpoint, error)
	Log    *slog.Logger
}

// Keys asks until it gets the keys, or ctx ends.
func (c *Client) Keys(ctx context.Context) (Keys, error) {
	pause := time.Duration(0)
	for attempt := 1; ; attempt++ {
		keys, err := c.try(ctx)
		if err == nil {
			c.Log.Info("enrolled: this node has its key", "attempts", attempt)
			return keys, nil
		}
		if ctx.Err() == nil && attempt&(attempt-1) == 0 { // ever more rarely
			c.Log.Warn("cannot get the key of this node from the leading controller; trying again",
				"attempts", attempt, "error", err)
		}
		pause = backoff.Next(pause, firstPause, lastPause)
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return Keys{}, ctx.Err()
		}
	}
}

// try asks once.
func (c *Client) try(ctx context.Context) (Keys, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout+answerTimeout)
	defer cancel()
	at, err := c.Leader(ctx)
	if err != nil {
		return Keys{}, err
	}
	token, err := os.ReadFile(c.TokenFile) // the kubelet renews it
	if err != nil {
		return Keys{}, fmt.Errorf("token for the enrolment: %w", err)
	}
	return Ask(ctx, at, c.Node, strings.TrimSpace(string(token)))
}

// Ask asks once for the keys of a node. The token leaves this process only for the controller with the endpoint's
// certificate.
func Ask(ctx context.Context, at Endpoint, node, token string) (Keys, error) {
	body, err := json.Marshal(request{Node: node, Token: token})
	if err != nil {
		return Keys{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+at.Address+path, bytes.NewReader(body))
	if err != nil {
		return Keys{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	client := http.Client{
		Transport:     &http.Transport{TLSClientConfig: pin.To(at.Fingerprint), DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(r)
	if err != nil {
		return Keys{}, fmt.Errorf("enrolment: %w", err)
	}
	defer res.Body.Close()
	var a answer
	if err := readJSON(res.Body, &a); err != nil {
		return Keys{}, fmt.Errorf("enrolment: answer of %s (%s): %w", at.Address, res.Status, err)
	}
	if res.StatusCode != http.StatusOK || a.Keys == nil || a.Keys.Node == (wire.Key{}) {
		return Keys{}, fmt.Errorf("enrolment: %s refuses: %s: %s", at.Address, res.Status, a.Error)
	}
	return *a.Keys, nil
}
