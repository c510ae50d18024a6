// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Target is a port of a Service: Name names the Service, Port its port.
type Target struct{ Namespace, Name, Port string }

// Refused is the answer of the API server, or of the server behind it, instead of a tunnel.
type Refused struct {
	Code int // HTTP status
	Text string
}

// Error implements error.
func (e *Refused) Error() string { return e.Text }

// Dialer makes tunnels with the user's own rights.
type Dialer struct {
	url    url.URL
	client *http.Client
}

// NewDialer returns a dialer by the API server that c reaches. It does not connect yet.
func NewDialer(c *rest.Config, to Target) (*Dialer, error) {
	c = rest.CopyConfig(c)
	c.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
	c.Timeout = 0
	// The API server's address, which may have a path.
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	u := *base.JoinPath("api/v1/namespaces", to.Namespace, "services", to.Name+":"+to.Port, "proxy", Path)
	return &Dialer{url: u, client: client}, nil
}

// Dial makes a tunnel.
func (d *Dialer) Dial(ctx context.Context) (net.Conn, error) {
	// The context of the request ends the tunnel, too.
	life, end := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(life, http.MethodGet, d.url.String(), nil)
	if err != nil {
		end()
		return nil, err
	}
	ask(r.Header)
	stop := context.AfterFunc(ctx, end)
	resp, err := d.client.Do(r)
	if !stop() && ctx.Err() != nil {
		if err == nil {
			_ = resp.Body.Close()
		}
		end()
		return nil, ctx.Err()
	}
	if err != nil {
		end()
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, fmt.Errorf("API server %s: %w", d.url.Host, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer end()
		return nil, &Refused{Code: resp.StatusCode, Text: textOf(resp)}
	}
	both, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		defer end()
		_ = resp.Body.Close()
		return nil, fmt.Errorf("API server %s: the answer to an upgrade cannot be written to", d.url.Host)
	}
	return &body{ReadWriteCloser: both, end: end, host: d.url.Host}, nil
}

// textOf returns the text of an answer that is not a tunnel, and closes it.
func textOf(resp *http.Response) string {
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if text := strings.TrimSpace(string(b)); text != "" {
		return text
	}
	return resp.Status
}

// body is the body of an answer to an upgrade as a connection. It has no deadlines: its users are bounded by
// contexts, which close it.
type body struct {
	io.ReadWriteCloser
	end  context.CancelFunc
	host string
}

// Close implements net.Conn.
func (b *body) Close() error {
	err := b.ReadWriteCloser.Close()
	b.end()
	return err
}

// LocalAddr implements net.Conn.
func (b *body) LocalAddr() net.Addr { return b }

// RemoteAddr implements net.Conn.
func (b *body) RemoteAddr() net.Addr { return b }

// Network implements net.Addr.
func (b *body) Network() string { return "tunnel" }

// String implements net.Addr.
func (b *body) String() string { return b.host }

// SetDeadline implements net.Conn.
func (b *body) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (b *body) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (b *body) SetWriteDeadline(time.Time) error { return nil }
