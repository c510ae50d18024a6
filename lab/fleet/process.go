// SPDX-License-Identifier: Apache-2.0

package fleet

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

// process is a controller process.
type process struct {
	addr    string // host:port for daemons
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
	stderr  bytes.Buffer // read after its end only
	ended   bool
}

// endTimeout is how long a controller process may take to end.
const endTimeout = time.Minute

// startProcess starts a controller process and waits until it has its services.
func startProcess(argv []string, cfg controllerConfig) (*process, error) {
	// It ends with its standard input.
	p := &process{cmd: exec.CommandContext(context.Background(), argv[0], argv[1:]...)}
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
	var ready controllerReady
	err = json.NewEncoder(p.in).Encode(cfg)
	if err == nil {
		err = p.answers.Decode(&ready)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(argv, " "), errors.Join(err, p.end()))
	}
	p.addr = ready.Addr
	return p, nil
}

// ask sends a request and decodes the answer into a pointer.
func (p *process) ask(request string, answer any) error {
	_, err := fmt.Fprintln(p.in, request)
	if err == nil {
		err = p.answers.Decode(answer)
	}
	if err != nil {
		return fmt.Errorf("controller process: %s: %w", request, errors.Join(err, p.end()))
	}
	return nil
}

// end ends the process and waits for it. Later calls do nothing.
func (p *process) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.in.Close()
	kill := time.AfterFunc(endTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("controller process: %w: %s", err, tail(p.stderr.Bytes()))
	}
	return nil
}

// kill ends the process by SIGKILL, and waits until its socket is closed.
func (p *process) kill() {
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.in.Close()
}

// tail returns the last 2 KiB of a process's output.
func tail(b []byte) []byte { return bytes.TrimSpace(b[max(0, len(b)-2048):]) }
