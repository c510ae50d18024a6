// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/forecast"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// One service is scheduled, the other was used every hour, the last time 55 minutes ago: both have a pod before anyone
// connects, and keep it although they are idle.
func TestPodsAreReadyBeforeAnyoneAsks(t *testing.T) {
	file := filepath.Join(sharedState, "uses", "default.hourly")
	var h forecast.History
	for i := 30; i >= 0; i-- {
		h.Used(time.Now().Add(-55*time.Minute - time.Duration(i)*time.Hour))
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(h.Encode()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	l := newLab(t, 1)
	l.start(t,
		service{name: "daily", idle: 1, more: `sleep: {schedule: [{from: "@yearly", to: "59 23 31 12 *"}]}`},
		service{name: "hourly", idle: 1, more: "sleep: {predict: true}"})
	for name, want := range map[string]string{
		"daily":  "sleep.schedule keeps a pod until",
		"hourly": "The forecast is made from its last 30 pauses, which are alike",
	} {
		l.until(t, name, "ready", func(s status.Status) bool { return s.Serving == 1 })
		out, err := l.wangell("why", name)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("why %s: %v\n%s", name, err, out)
		}
		e2e.MustAsk(t, l.Client(), l.address(t, name))
		if w := l.wakes(t, name); len(w) != 0 {
			t.Errorf("%s was woken by its client: %+v", name, w)
		}
	}
	// What a user wants goes before both.
	if _, err := l.wangell("sleep", "daily"); err != nil {
		t.Fatal(err)
	}
	l.until(t, "daily", "asleep", func(s status.Status) bool { return len(s.Pods) == 0 })
	e2e.MustAsk(t, l.Client(), l.address(t, "daily"))
	if w := l.wakes(t, "daily"); len(w) != 1 {
		t.Errorf("wakes: %+v, want 1", w)
	}
}
