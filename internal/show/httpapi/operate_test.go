// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/runtime"
)

var _ Operator = (*controller.Controller)(nil)

func TestUserOperatesAService(t *testing.T) {
	f := &fake{}
	c, _ := start(t, f)
	ctx := t.Context()
	if err := c.Wake(ctx, "redis"); err != nil {
		t.Error(err)
	}
	if n, err := c.Restart(ctx, "redis"); err != nil || n != len("default/redis") {
		t.Errorf("%d, %v", n, err)
	}
	for name, key := range map[string]v1alpha1.Key{"redis": "default/redis", "": ""} {
		if list, err := c.Stats(ctx, name); err != nil || len(list) != 1 || list[0].Service != key || list[0].Throttled != 3 {
			t.Errorf("%+v, %v", list, err)
		}
	}
	st, _, release, err := c.Hold(ctx, "redis", "")
	if err != nil || st.Service.Name != "redis" || len(st.Pods) != 2 || f.held.Load() != 1 {
		t.Fatalf("%+v, %v, held %d", st, err, f.held.Load())
	}
	release()
	for f.held.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	for _, err := range []error{c.Wake(ctx, ""), c.Wake(ctx, "nope")} {
		if !errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("%v", err)
		}
	}
	f.ready = errors.New("image missing")
	if err := c.Wake(ctx, "redis"); err == nil || err.Error() != "image missing" {
		t.Errorf("%v", err)
	}
	if _, _, _, err := c.Hold(ctx, "redis", ""); err == nil || err.Error() != "image missing" {
		t.Errorf("%v", err)
	}
}

func TestOnlyOneMachineOperatesServices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	s, err := Serve(Config{Path: path, Services: struct{ Services }{&fake{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := NewClient(path)
	defer c.Close()
	var refused *Error
	if err := c.Wake(t.Context(), "redis"); !errors.As(err, &refused) || refused.Code != http.StatusNotImplemented {
		t.Errorf("%v", err)
	}
}

func TestCommandEndsWithItsClientAndNotWithTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	f, ended := &fake{}, make(chan string, 10)
	s, err := Serve(Config{Path: path, Services: f, EndCommand: func(k v1alpha1.Key, id string) {
		ended <- fmt.Sprint(k, " ", id, " held ", f.held.Load())
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(path)
	defer c.Close()
	hold := func(id string) (release func()) {
		t.Helper()
		_, _, release, err := c.Hold(t.Context(), "redis", id)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	hold("one")()
	if got, want := <-ended, "default/redis one held 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	hold("")()
	defer hold("two")()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for f.held.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case got := <-ended:
		t.Errorf("ended %q", got)
	default:
	}
}
