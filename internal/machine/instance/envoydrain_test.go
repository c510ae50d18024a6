// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The ports are 0x2710 = 10000, which is one of clients, 0x9000 of Envoy's own connections and 0x26ad of its health.
func TestClientsOfEnvoyAreCountedByTheirPort(t *testing.T) {
	const header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(local, state string) string {
		return "   0: 0100800A:" + local + " 0200800A:C350 " + state + " 00000000:00000000 00:00000000 00000000 65534 0 1 1\n"
	}
	for name, c := range map[string]struct {
		table     string
		listening bool
		clients   int
	}{
		"nothing":                 {table: header},
		"cut off":                 {table: header + "   0: 0100"},
		"listens":                 {table: header + row("2710", "0A"), listening: true},
		"two clients":             {table: header + row("2710", "01") + row("7D00", "08"), clients: 2},
		"those that have left":    {table: header + row("2710", "06") + row("2710", "05")},
		"connections to pods":     {table: header + row("9000", "01") + row("26AD", "0A")},
		"ports beyond the limits": {table: header + row("270F", "01") + row("7D01", "01")},
	} {
		if listening, clients := frontSockets([]byte(c.table)); listening != c.listening || clients != c.clients {
			t.Errorf("%s: %v, %d, want %v, %d", name, listening, clients, c.listening, c.clients)
		}
	}
}

func TestFileThatIsReplacedHasAnotherState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "envoy")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if stateOf(path) != (fileState{}) {
		t.Error("a file that is not there has a state")
	}
	write(path)
	before := stateOf(path)
	if again := stateOf(path); before == (fileState{}) || again != before {
		t.Errorf("%+v, then %+v", before, again)
	}
	f, opened, err := openFile(path)
	if err != nil || opened != before {
		t.Errorf("%+v once it is open, %v, want %+v", opened, err, before)
	}
	defer f.Close()
	write(path + ".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	after := stateOf(path)
	if after == (fileState{}) || after == before {
		t.Errorf("%+v after it was replaced", after)
	}
	const interval = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 10*interval)
	defer cancel()
	if awaitChange(ctx, path, interval, func() fileState { return after }) {
		t.Error("a change although what is there has been launched")
	}
	if !awaitChange(t.Context(), path, interval, func() fileState { return before }) {
		t.Error("no change although something else is there")
	}
}
