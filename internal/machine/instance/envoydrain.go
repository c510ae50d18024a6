// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/node/envoy"
)

// fileState tells versions of a file apart.
type fileState struct {
	dev, ino uint64
	size     int64
	modified unix.Timespec
}

// stateOf returns the state of a file; the zero value if it cannot be read, as while it is being replaced.
func stateOf(path string) fileState {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileState{}
	}
	return newFileState(st)
}

// openFile opens a file for reading and returns its state.
func openFile(path string) (*os.File, fileState, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileState{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fileState{}, &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	return f, newFileState(st), nil
}

func newFileState(st unix.Stat_t) fileState {
	return fileState{dev: st.Dev, ino: st.Ino, size: st.Size, modified: st.Mtim}
}

// awaitChange waits until a program's file differs from the one last launched, and is complete: it was the same at
// two looks, an interval apart. It returns false if ctx ends first.
func awaitChange(ctx context.Context, path string, interval time.Duration, launched func() fileState) bool {
	last := launched()
	looks := time.NewTicker(interval)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-looks.C:
		}
		now := stateOf(path)
		if now != (fileState{}) && now == last && now != launched() {
			return true
		}
		last = now
	}
}

// awaitDrained waits until a draining Envoy has no clients left, until that has taken too long, or until ctx ends. An
// Envoy that still listens serves: its successor does not yet.
func awaitDrained(ctx context.Context, p *process.Process) {
	looks := time.NewTicker(drainLooks)
	defer looks.Stop()
	var deadline <-chan time.Time
	for {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", p.PID()))
		if err != nil {
			return // it has ended
		}
		listening, clients := frontSockets(data)
		switch {
		case listening:
		case clients == 0:
			return
		case deadline == nil:
			deadline = time.After(envoyDrain + envoyGrace)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.Ended():
			return
		case <-deadline:
			return
		case <-looks.C:
		}
	}
}

// The states of a socket in proc_net_tcp(5) that matter here.
const (
	tcpEstablished = 0x01
	tcpCloseWait   = 0x08
	tcpListen      = 0x0A
)

// frontSockets reports whether Envoy listens for clients, and how many it has, by the table of its network namespace's
// sockets (proc_net_tcp(5)).
func frontSockets(table []byte) (listening bool, clients int) {
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			continue
		}
		_, local, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(local, 16, 16)
		state, stateErr := strconv.ParseUint(fields[3], 16, 8)
		if err != nil || stateErr != nil || port < envoy.FirstPort || port > envoy.LastPort {
			continue
		}
		switch state {
		case tcpListen:
			listening = true
		case tcpEstablished, tcpCloseWait:
			clients++
		}
	}
	return listening, clients
}

// envoyDrain bounds how long an Envoy that was replaced or is not needed keeps clients' connections.
const envoyDrain = 10 * time.Minute

// envoyGrace is how much longer it may finish requests.
const envoyGrace = 10 * time.Second

// drainLooks is the interval of checks whether all clients have left.
const drainLooks = 500 * time.Millisecond
