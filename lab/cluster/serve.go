// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"wangell.loutres.me/lab/probe"
)

// wantAnswers is the number of answers in a row after which a service is in order.
const wantAnswers = 10

// UntilServed waits until a target answers the clients several times in a row.
func (v *Vantage) UntilServed(ctx context.Context, t *Target) error {
	answers := 0
	return Until(ctx, ReadyTimeout, func() error {
		for ; answers < wantAnswers; answers++ {
			if err := get(ctx, v.Hosts[0].Namespace.Dialer().DialContext, v.Address(t), t.Host); err != nil {
				answers = 0
				return fmt.Errorf("%s does not answer clients in %s: %w", t.Name, v.Name, err)
			}
		}
		return nil
	})
}

// get makes one request on a connection of its own. Host is the host name, or empty for the address.
func get(ctx context.Context, dial probe.DialFunc, address, host string) error {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return err
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, resp.Status)
	}
	return nil
}
