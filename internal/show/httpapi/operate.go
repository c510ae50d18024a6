// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

// Waker wakes services. A controller.Controller is one.
type Waker interface {
	Wake(ctx context.Context, key v1alpha1.Key) error
}

// Holder keeps services awake. A controller.Controller is one.
type Holder interface {
	Waker
	Status() []status.Status
	Hold(ctx context.Context, key v1alpha1.Key) (release func(), err error)
}

// Operator has the operations of one machine that a cluster leaves to kubectl. A controller.Controller is one.
type Operator interface {
	Holder
	Restart(ctx context.Context, key v1alpha1.Key) (replaced int, err error)
	Stats(ctx context.Context, key v1alpha1.Key) ([]status.PodUsage, error)
}

// Restarted is the answer to a restart.
type Restarted struct {
	// Replaced is the number of replaced pods; 0 if the service slept.
	Replaced int `json:"replaced"`
}

// The answers of servers whose Services lack what a request needs.
const (
	noOperator = "only on one machine: in a cluster, use kubectl exec, kubectl top and kubectl rollout"
	noWaker    = "this server wakes no services"
	noHolder   = "this server keeps no services awake"
)

// operate returns the handler of a request about one service for an O, such as an Operator. Services that are none are
// answered with a text.
func operate[O any](without string,
	f func(http.ResponseWriter, *http.Request, O, v1alpha1.Key)) func(http.ResponseWriter, *http.Request, Services) {
	return func(w http.ResponseWriter, r *http.Request, s Services) {
		o, ok := s.(O)
		if !ok {
			Refuse(w, &Error{Code: http.StatusNotImplemented, Text: without})
			return
		}
		key := v1alpha1.Key("")
		if name := r.FormValue("service"); name != "" || r.Method != http.MethodGet {
			var err error
			if key, err = s.Resolve(name); err != nil {
				answer(w, nil, err)
				return
			}
		}
		f(w, r, o, key)
	}
}

var (
	restart = operate(noOperator, func(w http.ResponseWriter, r *http.Request, o Operator, key v1alpha1.Key) {
		n, err := o.Restart(r.Context(), key)
		answer(w, Restarted{n}, err)
	})
	stats = operate(noOperator, func(w http.ResponseWriter, r *http.Request, o Operator, key v1alpha1.Key) {
		list, err := o.Stats(r.Context(), key)
		answer(w, append([]status.PodUsage{}, list...), err)
	})
	wake = operate(noWaker, func(w http.ResponseWriter, r *http.Request, o Waker, key v1alpha1.Key) {
		answer(w, nil, o.Wake(r.Context(), key))
	})
)

// hold returns the handler that keeps a service awake until its client is gone. Then it ends the command of the client,
// if that has one: a client that was killed could not.
func hold(endCommand func(key v1alpha1.Key, id string)) func(http.ResponseWriter, *http.Request, Services) {
	return operate(noHolder, func(w http.ResponseWriter, r *http.Request, o Holder, key v1alpha1.Key) {
		release, err := o.Hold(r.Context(), key)
		if err != nil {
			answer(w, nil, err)
			return
		}
		defer release()
		for _, st := range o.Status() {
			if v1alpha1.KeyOf(&st.Service) == key {
				answer(w, st, nil)
			}
		}
		if http.NewResponseController(w).Flush() == nil {
			<-r.Context().Done()
		}
		// When this server closes, the pods end.
		id := r.FormValue("command")
		if id != "" && endCommand != nil && !errors.Is(context.Cause(r.Context()), http.ErrServerClosed) {
			endCommand(key, id)
		}
	})
}

// Wake wakes a service, and returns once it serves. Its idle timeout begins then.
func (c *Client) Wake(ctx context.Context, name string) error {
	return c.nothing(ctx, http.MethodPost, "/v1/wake", url.Values{"service": {name}})
}

// Hold wakes a service, returns its status once it serves, and keeps it from falling asleep until release is called,
// ctx ends, or the instance goes, which closes ended. The instance then ends the command with an ID that the caller has
// attached to in the service, also if the caller was killed; empty for none.
func (c *Client) Hold(ctx context.Context, name, command string) (st status.Status, ended <-chan struct{},
	release func(), err error) {
	q := url.Values{"service": {name}}
	if command != "" {
		q.Set("command", command)
	}
	resp, err := c.do(ctx, http.MethodPost, "/v1/hold", q)
	if err != nil {
		return st, nil, nil, err
	}
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		resp.Body.Close()
		return st, nil, nil, fmt.Errorf("service %s: hold: %w", name, err)
	}
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, resp.Body) // nothing comes any more
		close(gone)
	}()
	return st, gone, func() { resp.Body.Close() }, nil
}

// Restart replaces the pods of a service. It returns their number once the new ones serve, and 0 if the service sleeps.
func (c *Client) Restart(ctx context.Context, name string) (replaced int, err error) {
	resp, err := c.do(ctx, http.MethodPost, "/v1/restart", url.Values{"service": {name}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var out Restarted
	err = json.NewDecoder(resp.Body).Decode(&out)
	return out.Replaced, err
}

// Stats returns the usage of the pods of a service, or of all services if name is empty.
func (c *Client) Stats(ctx context.Context, name string) (out []status.PodUsage, err error) {
	q := url.Values{}
	if name != "" {
		q.Set("service", name)
	}
	return out, c.getJSON(ctx, "/v1/stats", q, &out)
}
