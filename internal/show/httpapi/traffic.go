// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"wangell.loutres.me/api/v1alpha1"
)

// Splitter moves traffic on one machine. In a cluster, spec.traffic is written to the API server instead.
type Splitter interface {
	// SetTraffic moves the traffic of a service among its revisions. It fails if the present traffic is no longer
	// from.
	SetTraffic(ctx context.Context, key v1alpha1.Key, from, to []v1alpha1.Revision) error
}

// traffic is the value of the parameter of a request to move traffic.
type traffic struct {
	From []v1alpha1.Revision `json:"from"`
	To   []v1alpha1.Revision `json:"to"`
}

// Conflict returns an error that refuses a request because of the present state.
func Conflict(format string, args ...any) error {
	return &Error{Code: http.StatusConflict, Text: fmt.Errorf(format, args...).Error()}
}

// setTraffic handles a request to move traffic.
func setTraffic(w http.ResponseWriter, r *http.Request, s Services) {
	splitter, ok := s.(Splitter)
	if !ok {
		Refuse(w, &Error{Code: http.StatusNotImplemented, Text: "only on one machine: in a cluster, change spec.traffic"})
		return
	}
	var t traffic
	err := json.Unmarshal([]byte(r.FormValue("traffic")), &t)
	if err != nil {
		Refuse(w, badRequest("traffic: %v", err))
		return
	}
	key, err := s.Resolve(r.FormValue("service"))
	if err == nil {
		err = splitter.SetTraffic(r.Context(), key, t.From, t.To)
	}
	answer(w, nil, err)
}

// SetTraffic moves the traffic of a service among its revisions. It fails if the present traffic is no longer from.
func (c *Client) SetTraffic(ctx context.Context, name string, from, to []v1alpha1.Revision) error {
	data, err := json.Marshal(traffic{from, to})
	if err != nil {
		return err
	}
	return c.nothing(ctx, http.MethodPost, "/v1/traffic", url.Values{"service": {name}, "traffic": {string(data)}})
}
