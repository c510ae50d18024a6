// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
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

// controllerConfig configures a controller process. It is the first line that the process reads.
type controllerConfig struct {
	Key      []byte        `json:"key"` // of the wire
	Daemons  int           `json:"daemons"`
	Services int           `json:"services"`
	Pods     []runtime.Pod `json:"pods"` // that an earlier controller has left
}

// The requests to a controller process, one per line.
const (
	askSync  = "sync"  // give daemons the services; the answer is {}
	askUsage = "usage" // the answer is a usage
	askPods  = "pods"  // the answer is a list of runtime.Pod
)

// controllerReady is the first answer of a controller process.
type controllerReady struct {
	Addr string `json:"addr"` // host:port for daemons
}

// usage is what a process has used so far.
type usage struct {
	CPU      float64 `json:"cpu_s"`        // processor time in seconds
	Resident float64 `json:"resident_mib"` // resident memory in MiB
}

// serviceAddr returns the address of service i.
func serviceAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 46, byte(i >> 8), byte(i)}) }

// servicePort is the port of every service.
const servicePort = 80

// RunController is the controller process (`wangell-lab fleet-controller`): it reads a controllerConfig as one line of
// JSON, and then answers requests until in ends.
func RunController(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("fleet-controller: read the configuration: %w", err)
	}
	var cfg controllerConfig
	if err := json.Unmarshal(line, &cfg); err != nil {
		return fmt.Errorf("fleet-controller: read the configuration: %w", err)
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return fmt.Errorf("fleet-controller: %w", err)
	}
	rt := newInstant(cfg.Daemons, cfg.Pods)
	c, err := controller.New(controller.Config{Runtime: rt, Conn: conn, Key: wire.Key(cfg.Key), Log: log})
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("fleet-controller: %w", err)
	}
	defer c.Detach()
	if err := c.Update(services(cfg.Services), nil); err != nil {
		return fmt.Errorf("fleet-controller: %w", err)
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode(controllerReady{Addr: conn.LocalAddr().String()}); err != nil {
		return err
	}
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("fleet-controller: %w", err)
		}
		answer, err := answerTo(ctx, strings.TrimSpace(line), c, rt)
		if err == nil {
			err = answers.Encode(answer)
		}
		if err != nil {
			return fmt.Errorf("fleet-controller: %w", err)
		}
	}
}

func answerTo(ctx context.Context, request string, c *controller.Controller, rt *instant) (any, error) {
	switch request {
	case askSync:
		return struct{}{}, c.Synced(ctx)
	case askUsage:
		return ownUsage()
	case askPods:
		return rt.List(ctx)
	}
	return nil, fmt.Errorf("request %q: want %s, %s or %s", request, askSync, askUsage, askPods)
}

// services returns n services.
func services(n int) []controller.Service {
	all := make([]controller.Service, n)
	for i := range all {
		s := &v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("service-%05d", i)},
			Spec: v1alpha1.WangellServiceSpec{
				Image: "registry.example/hello:1", Port: servicePort, TargetPort: 8080, IdleTimeout: 3600,
			},
		}
		v1alpha1.Default(s)
		all[i] = controller.Service{Spec: s, Addr: serviceAddr(i), Announce: true}
	}
	return all
}

// ownUsage returns what this process has used.
func ownUsage() (u usage, err error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return u, fmt.Errorf("getrusage: %w", err)
	}
	u.CPU = float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	u.Resident, err = report.Memory(os.Getpid(), "VmRSS")
	return u, err
}
