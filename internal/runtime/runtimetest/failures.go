// SPDX-License-Identifier: Apache-2.0

package runtimetest

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

func missingImage(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("missing")
	s.Spec.Image = "wangell.local/missing:v1"
	_, err := r.Start(t.Context(), s, runtime.StartHooks{})
	errs := []error{err}
	if !h.Remote {
		errs = append(errs, r.Prepare(t.Context(), s, nil))
	}
	for _, err := range errs {
		if !errors.Is(err, runtime.ErrImage) {
			t.Fatalf("got %v, want ErrImage", err)
		}
		for _, word := range []string{"default/missing", "wangell.local/missing:v1"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not name %s", err, word)
			}
		}
	}
	none(t, r)
}

func processEnds(t *testing.T, h Harness) {
	r := h.Open(t)
	p := mustStart(t, r, Service("ends"))
	Look(t, p)
	go Call(p, "/exit", url.Values{"code": {"7"}})
	e := NextExit(t, r, p.ID)
	if e.Code != 7 || e.Service != p.Service {
		t.Errorf("exit %+v, want code 7", e)
	}
	if !strings.HasSuffix(e.LogTail, "probe: asked to exit\n") {
		t.Errorf("end of log %q", e.LogTail)
	}
	if got, ok := listed(t, r, p.ID); !ok || got.Started != 0 {
		t.Errorf("after its end the pod is listed as %+v, %v; want it there and not running", got, ok)
	}
	mustStop(t, r, p)
	none(t, r)
}

func endsAtOnce(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("at-once", "EXIT", "3")
	for range 3 {
		p := mustStart(t, r, s)
		if e := NextExit(t, r, p.ID); e.Code != 3 || e.LogTail != "probe: told to exit\n" {
			t.Errorf("exit %+v", e)
		}
		mustStop(t, r, p)
	}
	none(t, r)
}

func cannotStart(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("no-command")
	s.Spec.Command = []string{"/no/such/program"}
	_, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") ||
		!strings.Contains(err.Error(), "default/no-command") {
		t.Errorf("error %v does not name the service and the program", err)
	}
	none(t, r)
}

func cancelledStart(t *testing.T, h Harness) {
	r := h.Open(t)
	phases := h.phases()
	for _, at := range phases[:len(phases)-1] {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := r.Start(ctx, Service("cancelled"), runtime.StartHooks{Phase: func(p runtime.Phase, _ monotime.Time) {
			if p == at {
				cancel()
			}
		}})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled after phase %s: got %v", at, err)
		}
		none(t, r)
	}
	p := mustStart(t, r, Service("cancelled"))
	Look(t, p)
	mustStop(t, r, p)
}
