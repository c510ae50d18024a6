// SPDX-License-Identifier: Apache-2.0

package wired

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab/report"
)

// ControllerConfig configures a controller process. It is the first line that the process reads.
type ControllerConfig struct {
	Listen   string        `json:"listen"` // HOST:PORT for daemons; default 127.0.0.1 and any port
	Key      []byte        `json:"key"`    // of the wire
	Daemons  int           `json:"daemons"`
	Services int           `json:"services"`
	Pods     []runtime.Pod `json:"pods"` // that an earlier controller has left
}

// The requests to a controller process, one per line.
const (
	AskSync  = "sync"  // give daemons the services; the answer is {}
	AskUsage = "usage" // the answer is a Usage
	AskPods  = "pods"  // the answer is a list of runtime.Pod
)

// ControllerReady is the first answer of a controller process.
type ControllerReady struct {
	Addr string `json:"addr"` // host:port for daemons
}

// Usage is what a process has used so far.
type Usage struct {
	CPU      float64 `json:"cpu_s"`        // processor time in seconds
	Resident float64 `json:"resident_mib"` // resident memory in MiB
}

// ServiceAddr returns the address of service i.
func ServiceAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 46, byte(i >> 8), byte(i)}) }

// ServiceNumber is the inverse of ServiceAddr.
func ServiceNumber(a netip.Addr) int {
	b := a.As4()
	return int(binary.BigEndian.Uint16(b[2:]))
}

// ServicePort is the port of every service.
const ServicePort = 80

// RunController is the controller process (`wangell-lab fleet-controller`): it reads a ControllerConfig as one line of
// JSON, and then answers requests until in ends.
func RunController(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("controller process: read the configuration: %w", err)
	}
	var cfg ControllerConfig
	if err := json.Unmarshal(line, &cfg); err != nil {
		return fmt.Errorf("controller process: read the configuration: %w", err)
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	conn, err := wire.Listen(cfg.Listen)
	if err != nil {
		return fmt.Errorf("controller process: %w", err)
	}
	rt := newInstant(cfg.Daemons, cfg.Pods)
	c, err := controller.New(controller.Config{Runtime: rt, Conn: conn, Key: wire.Key(cfg.Key), Log: log})
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("controller process: %w", err)
	}
	defer c.Detach()
	if err := c.Update(services(cfg.Services), nil); err != nil {
		return fmt.Errorf("controller process: %w", err)
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode(ControllerReady{Addr: conn.LocalAddr().String()}); err != nil {
		return err
	}
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("controller process: %w", err)
		}
		answer, err := answerTo(ctx, strings.TrimSpace(line), c, rt)
		if err == nil {
			err = answers.Encode(answer)
		}
		if err != nil {
			return fmt.Errorf("controller process: %w", err)
		}
	}
}

func answerTo(ctx context.Context, request string, c *controller.Controller, rt *instant) (any, error) {
	switch request {
	case AskSync:
		return struct{}{}, c.Synced(ctx)
	case AskUsage:
		return OwnUsage()
	case AskPods:
		return rt.List(ctx)
	}
	return nil, fmt.Errorf("request %q: want %s, %s or %s", request, AskSync, AskUsage, AskPods)
}

// services returns n services.
func services(n int) []controller.Service {
	all := make([]controller.Service, n)
	for i := range all {
		s := &v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("service-%05d", i)},
			Spec: v1alpha1.WangellServiceSpec{
				Image: "registry.example/hello:1", Port: ServicePort, TargetPort: 8080, IdleTimeout: 3600,
			},
		}
		v1alpha1.Default(s)
		all[i] = controller.Service{Spec: s, Addr: ServiceAddr(i), Announce: true}
	}
	return all
}

// OwnUsage returns what this process has used.
func OwnUsage() (u Usage, err error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return u, fmt.Errorf("getrusage: %w", err)
	}
	u.CPU = float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	u.Resident, err = report.Memory(os.Getpid(), "VmRSS")
	return u, err
}

// Controller is a controller process.
type Controller struct {
	*Process
	// Addr is its HOST:PORT for daemons.
	Addr string
}

// StartController starts a controller process by its command line (RunController), and waits until it has its services.
func StartController(argv []string, cfg ControllerConfig) (*Controller, error) {
	var ready ControllerReady
	p, err := Start("controller", argv, cfg, &ready)
	if err != nil {
		return nil, err
	}
	return &Controller{Process: p, Addr: ready.Addr}, nil
}
