// SPDX-License-Identifier: Apache-2.0

// Package wired is what experiments on the wire share: a controller in a process of its own, whose pods start at once,
// and the names and addresses of its nodes and services.
package wired

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Process is a process that answers requests: a line for each on its standard input, and a JSON value for each answer
// on its standard output. It is used by one goroutine at a time.
type Process struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
	stderr  bytes.Buffer // read after its end only
	ended   bool
}

// endTimeout is how long a process may take to end.
const endTimeout = time.Minute

// Start starts a process by its command line, gives it its configuration as one line of JSON, and decodes its first
// answer into the pointer ready. It has begun its work then. Its name is used in errors. The caller ends it with End or
// Kill.
func Start(name string, argv []string, cfg, ready any) (*Process, error) {
	// It ends with its standard input.
	p := &Process{name: name, cmd: exec.CommandContext(context.Background(), argv[0], argv[1:]...)}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(argv, " "), err)
	}
	p.answers = json.NewDecoder(out)
	err = json.NewEncoder(p.in).Encode(cfg)
	if err == nil {
		err = p.answers.Decode(ready)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(argv, " "), errors.Join(err, p.End()))
	}
	return p, nil
}

// Ask sends a request and decodes the answer into a pointer.
func (p *Process) Ask(request string, answer any) error {
	_, err := fmt.Fprintln(p.in, request)
	if err == nil {
		err = p.answers.Decode(answer)
	}
	if err != nil {
		return fmt.Errorf("%s process: %s: %w", p.name, request, errors.Join(err, p.End()))
	}
	return nil
}

// End ends the process and waits for it. Later calls do nothing.
func (p *Process) End() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.in.Close()
	kill := time.AfterFunc(endTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s process: %w: %s", p.name, err, tail(p.stderr.Bytes()))
	}
	return nil
}

// Kill ends the process by SIGKILL, and waits until its socket is closed.
func (p *Process) Kill() {
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.in.Close()
}

// tail returns the last 2 KiB of a process's output.
func tail(b []byte) []byte { return bytes.TrimSpace(b[max(0, len(b)-2048):]) }
