// SPDX-License-Identifier: Apache-2.0

package onenode

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
	"wangell.loutres.me/test/testutil/netlab"
)

// floorConfig configures a floor process. It is the first line that the process reads.
type floorConfig struct {
	// Socket is the socket of the containerd to use; the image must be in its namespace containerd.DefaultNamespace.
	Socket string `json:"socket"`
	// StateDir and RunDir must not be shared with another process.
	StateDir string `json:"stateDir"`
	RunDir   string `json:"runDir"`
	// PodAddresses is the range of the pods; it must not be shared either.
	PodAddresses netip.Prefix `json:"podAddresses"`
	// Service is what is started.
	Service v1alpha1.WangellService `json:"service"`
}

// RunFloor is the floor process (`wangell-lab floor`). It measures in the network namespace in which it is started: it
// reads a floorConfig as one line of JSON, answers "ready", and continues as Floor does. When in ends, it removes
// everything that it made.
func RunFloor(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) (err error) {
	reader := bufio.NewReader(in)
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("floor: read the configuration: %w", err)
	}
	var cfg floorConfig
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

// FloorProcess is a child process that runs RunFloor.
type FloorProcess struct {
	floorClient
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *tail
}

// StartFloor starts a floor process beside a running instance: with the same containerd and image, but folders and
// addresses of its own. argv is its command line. The caller must stop it.
func (i *Instance) StartFloor(argv []string, service v1alpha1.WangellService) (*FloorProcess, error) {
	return startFloor(i.Net.Node, argv, floorConfig{
		Socket: containerd.OwnSocket(i.runDir), StateDir: i.baseDir + "/floor-state", RunDir: i.floorRun,
		PodAddresses: floorAddresses, Service: service,
	})
}

func startFloor(ns *netlab.Namespace, argv []string, cfg floorConfig) (*FloorProcess, error) {
	config, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	// It ends with its standard input, and cleans up; a context would kill it.
	p := &FloorProcess{cmd: ns.Command(context.Background(), argv...), stderr: &tail{}}
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
		return nil, fmt.Errorf("start %s: %w", strings.Join(argv, " "), errors.Join(err, p.Stop()))
	}
	return p, nil
}

// Stop ends the process and waits until it has cleaned up.
func (p *FloorProcess) Stop() error {
	_ = p.in.Close()
	kill := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("end the floor process: %w: %s", err, p.stderr)
	}
	return nil
}
