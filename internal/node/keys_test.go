// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

func TestKeysOutlastTheDaemon(t *testing.T) {
	dir, asked := t.TempDir(), 0
	keys := enrolment.KeysOf(wire.Key{1}, "n1")
	config := func(node string) *Config {
		return &Config{
			RunDir: dir, Node: node, Log: slog.New(slog.DiscardHandler),
			Enrol: func(context.Context) (enrolment.Keys, error) { asked++; return keys, nil },
		}
	}
	for range 2 {
		c := config("n1")
		if err := c.obtainKeys(t.Context()); err != nil || c.Keys != keys || asked != 1 {
			t.Fatalf("asked %d times: %v", asked, err)
		}
	}
	info, err := os.Stat(keysFile(dir))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// Another node's keys, and a file that was damaged, are of no use.
	if c := config("n2"); c.obtainKeys(t.Context()) != nil || asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	if err := os.WriteFile(keysFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := config("n2"); c.obtainKeys(t.Context()) != nil || asked != 3 {
		t.Errorf("asked %d times", asked)
	}
	if err := forgetKeys(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(keysFile(dir)); !os.IsNotExist(err) || forgetKeys(dir) != nil {
		t.Error("the keys are still there, or cannot be removed twice")
	}
	if _, err := config("n1").keptKeys(); err == nil || !os.IsNotExist(err) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
}

// A daemon that waits for its key is healthy, or it would be restarted, and not ready.
func TestDaemonWithoutAKeyIsHealthyAndNotReady(t *testing.T) {
	sh(t, "ip link set lo up")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	got := map[string]int{}
	c := &Config{RunDir: t.TempDir(), Node: "n1", MetricsAddress: addr, Log: slog.New(slog.DiscardHandler)}
	c.Enrol = func(context.Context) (enrolment.Keys, error) {
		for _, path := range []string{"/healthz", "/readyz"} {
			r, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Error(err)
				continue
			}
			r.Body.Close()
			got[path] = r.StatusCode
		}
		return enrolment.KeysOf(wire.Key{1}, "n1"), nil
	}
	if err := c.obtainKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got["/healthz"] != http.StatusOK || got["/readyz"] != http.StatusServiceUnavailable {
		t.Errorf("%v", got)
	}
}
