// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// ErrNotRunning is returned if no instance serves the socket.
var ErrNotRunning = errors.New("no wangell instance is running here")

// Client is a client of a running instance.
type Client struct {
	base      url.URL
	namespace string
	http      http.Client
	// explain turns a transport error into one that says what to do.
	explain   func(error) error
	closeIdle func()
	// silent says which program does not answer, and what to do.
	silent string
}

// NewClient returns a client of the instance that serves the given socket. It does not connect yet.
func NewClient(path string) *Client {
	transport := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}
	return &Client{
		base: url.URL{Scheme: "http", Host: "wangell"}, http: http.Client{Transport: transport},
		closeIdle: transport.CloseIdleConnections,
		explain:   func(err error) error { return explainSocket(path, err) },
		silent: fmt.Sprintf("the running wangell (%s) has not answered for %s: is it stopped? "+
			"If so, continue it with 'kill -CONT PID'", path, answerTimeout),
	}
}

// explainSocket explains why the socket of an instance cannot be reached.
func explainSocket(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w (%s): start one with \"wangell up -f FILE\"", ErrNotRunning, path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the socket %s belongs to root: use sudo", path)
	}
	return fmt.Errorf("ask the running wangell: %w", err)
}

// NewRemoteClient returns a client of an API that is not at a socket. base has the scheme and host; transport sends
// the requests. With a namespace, it sees only the services of that namespace.
func NewRemoteClient(base url.URL, transport http.RoundTripper, namespace string) *Client {
	return &Client{
		base: base, namespace: namespace, http: http.Client{Transport: transport},
		closeIdle: func() { utilnet.CloseIdleConnectionsFor(transport) }, // also below wrappers of client-go
		explain:   func(err error) error { return err },
		silent:    fmt.Sprintf("the controller has not answered for %s", answerTimeout),
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.closeIdle() }

// Status returns all services.
func (c *Client) Status(ctx context.Context) (out []status.Status, err error) {
	return out, c.getJSON(ctx, "/v1/services", nil, &out)
}

// Broken returns the manifests with mistakes.
func (c *Client) Broken(ctx context.Context) (out []BrokenFile, err error) {
	return out, c.getJSON(ctx, "/v1/broken", nil, &out)
}

// Pressure returns the scarcity in the gate as a whole. An instance without this endpoint reports nothing.
func (c *Client) Pressure(ctx context.Context) (out []status.Pressure, err error) {
	err = c.getJSON(ctx, "/v1/pressure", nil, &out)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, nil
	}
	return out, err
}

// Wakes returns the most recent wakes of a service, or of all services if name is empty, oldest first.
func (c *Client) Wakes(ctx context.Context, name string) (out []lifecycle.Waterfall, err error) {
	q := url.Values{}
	if name != "" {
		q.Set("service", name)
	}
	return out, c.getJSON(ctx, "/v1/wakes", q, &out)
}

// Versions returns the versions of the instance's programs, by name.
func (c *Client) Versions(ctx context.Context) (out map[string]string, err error) {
	return out, c.getJSON(ctx, "/v1/versions", nil, &out)
}

// Sleep puts a service to sleep, and returns when it sleeps.
func (c *Client) Sleep(ctx context.Context, name string) error {
	return c.nothing(ctx, http.MethodPost, "/v1/sleep", url.Values{"service": {name}})
}

// answerTimeout is how long an instance may take to answer from memory. It answers in milliseconds, unless it
// is stopped (SIGSTOP) or the machine is overloaded.
var answerTimeout = 10 * time.Second

// Healthy returns nil if an instance answers.
func (c *Client) Healthy(ctx context.Context) error {
	return c.nothing(ctx, http.MethodGet, "/healthz", nil)
}

// Ready returns nil if the instance can wake services.
func (c *Client) Ready(ctx context.Context) error {
	return c.nothing(ctx, http.MethodGet, "/readyz", nil)
}

// Logs copies the output of a container of the service's pods to w, with Follow until ctx ends.
func (c *Client) Logs(ctx context.Context, name string, w io.Writer, options runtime.LogOptions) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/logs", url.Values{
		"service": {name}, "container": {options.Container}, "tail": {strconv.Itoa(options.Tail)},
		"follow": {strconv.FormatBool(options.Follow)},
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("logs of %s: %w", name, err)
	}
	if quoted := resp.Trailer.Get(errorTrailer); quoted != "" {
		text, err := strconv.Unquote(quoted)
		if err != nil {
			text = quoted
		}
		return &Error{Code: resp.StatusCode, Text: text}
	}
	return nil
}

// Events calls f for each event until ctx or the instance ends. begun, which may be nil, is called once no further
// event can be missed.
func (c *Client) Events(ctx context.Context, begun func(), f func(status.Event)) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/events", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if begun != nil {
		begun()
	}
	for lines := json.NewDecoder(resp.Body); ; {
		var e status.Event
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("events: %w", err)
		}
		f(e)
	}
}

// getJSON sends a GET request and decodes its answer.
func (c *Client) getJSON(ctx context.Context, path string, q url.Values, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errors.New(c.silent))
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, path, q)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("answer to %s: %w", path, err)
	}
	return nil
}

// nothing sends a request whose answer is empty.
func (c *Client) nothing(ctx context.Context, method, path string, q url.Values) error {
	resp, err := c.do(ctx, method, path, q)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// do sends a request. An unsuccessful answer is an *Error.
func (c *Client) do(ctx context.Context, method, path string, q url.Values) (*http.Response, error) {
	u := c.base
	if c.namespace != "" {
		q = cloned(q)
		q.Set("namespace", c.namespace)
	}
	u.Path, u.RawQuery = path, q.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(errors.Unwrap(err)) // without the URL
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	var body errorBody
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&body); err != nil || body.Error == "" {
		body.Error = "the running wangell answers " + resp.Status
	}
	return nil, &Error{Code: resp.StatusCode, Text: body.Error}
}

// cloned returns a copy to which values can be added.
func cloned(q url.Values) url.Values {
	if q == nil {
		return url.Values{}
	}
	return maps.Clone(q)
}
