// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/internal/testutil/netlab"
)

// FloorConfig tells a floor process what to do. It is the first line that it reads.
type FloorConfig struct {
	// Socket is that of the containerd to use; the image must be in its namespace containerd.DefaultNamespace.
	Socket string `json:"socket"`
	// StateDir and RunDir are for this process alone.
	StateDir string `json:"stateDir"`
	RunDir   string `json:"runDir"`
	// PodAddresses is the range of its pods, for it alone.
	PodAddresses netip.Prefix `json:"podAddresses"`
	// Service is what to start.
	Service v1alpha1.WangellService `json:"service"`
}

// RunFloor is the whole of `wangell lab floor`, a process that measures the floor in the network namespace that it is
// started in: it reads a FloorConfig as one line of JSON, answers "ready", then does as Floor does. When in ends it
// removes everything that it made.
func RunFloor(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) (err error) {
	reader := bufio.NewReader(in)
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("floor: read the configuration: %w", err)
	}
	var cfg FloorConfig
	if err := json.Unmarshal(line, &cfg); err != nil {
		return fmt.Errorf("floor: read the configuration: %w", err)
	}
	rt, err := containerd.New(ctx, containerd.Config{Containerd: cfg.Socket, StateDir: cfg.StateDir, RunDir: cfg.RunDir,
		PodAddresses: cfg.PodAddresses, Log: log})
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, rt.Destroy(end))
	}()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	return Floor(ctx, rt, &cfg.Service, reader, out)
}

// floorProcess is a process that runs RunFloor.
type floorProcess struct {
	floorClient
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *tail
}

// startFloor starts a floor process in a namespace.
func startFloor(ns *netlab.Namespace, argv []string, cfg FloorConfig) (*floorProcess, error) {
	config, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	// It ends when its standard input does, not with a context: it has to clean up.
	p := &floorProcess{cmd: ns.Command(context.Background(), argv...), stderr: &tail{}}
	p.cmd.Stderr = p.stderr
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
	p.floorClient = floorClient{in: p.in, out: bufio.NewScanner(out)}
	_, err = p.in.Write(append(config, '\n'))
	if err == nil && !p.out.Scan() {
		err = errors.Join(errors.New("it ended before it was ready"), p.out.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(argv, " "), errors.Join(err, p.stop()))
	}
	return p, nil
}

// stop ends the process and waits until it has cleaned up.
func (p *floorProcess) stop() error {
	_ = p.in.Close()
	kill := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("end the floor process: %w: %s", err, p.stderr)
	}
	return nil
}
