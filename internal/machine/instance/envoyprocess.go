// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/runtime/podnet"
)

// launch starts the process in its network namespace. It must be called by a goroutine that keeps its thread.
func (p *proxy) launch(r *envoyRun, n podnet.Network, created time.Time) (started *process.Process, err error) {
	about := envoy.Proxy{Addr: n.Addr, Netns: n.Netns, Created: created}
	var rights []uintptr
	if r.transparent {
		if err := allowBehalf(n); err != nil {
			p.noteOpaque(err.Error())
		} else {
			about.Transparent, rights = true, []uintptr{behalfCapability}
			p.noteOpaque("")
		}
	}
	config, err := envoy.Bootstrap(envoy.BootstrapConfig{
		Proxy:  about,
		Socket: envoyDirFD + "/" + envoySocketName, Admin: envoyDirFD + "/" + adminSocketName(n),
		MaxHeap: envoyHeap, MaxConnections: envoyConnections,
	})
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(p.dir)
	if err != nil {
		return nil, fmt.Errorf("folder for Envoy's sockets: %w", err)
	}
	defer dir.Close()
	file, err := p.openProgram(r)
	if err != nil {
		return nil, fmt.Errorf("start Envoy: %w", err)
	}
	defer file.Close()
	cmd := exec.Command(envoyProgramFD, "--config-yaml", string(config), "--disable-hot-restart", "--log-level", "warning",
		"--log-format", "%l %v", "--drain-time-s", fmt.Sprint(int(envoyDrain.Seconds())), "--drain-strategy", "immediate")
	cmd.Args[0], cmd.Env, cmd.Dir = "envoy", []string{}, "/"
	cmd.ExtraFiles = []*os.File{dir, file}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Setpgid: true,
		Credential: &syscall.Credential{Uid: envoyUser, Gid: envoyUser}, AmbientCaps: rights,
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	err = withNetns(n.Netns, func() error {
		started, err = process.Start(cmd, func() error {
			forwardEnvoyLog(stderr, p.log.With("part", "envoy"))
			if err := cmd.Wait(); err != nil {
				return err
			}
			return errors.New("exit status 0")
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start Envoy %s: %w", r.program, err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		files.Cur = files.Max
		_ = unix.Prlimit(started.PID(), unix.RLIMIT_NOFILE, &files, nil) // it may have exited
	}
	return started, nil
}

// withNetns calls f on this thread in a network namespace.
func withNetns(path string, f func() error) error {
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer other.Close()
	if err := netns.Set(other); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(own))
}

// forwardEnvoyLog logs what Envoy writes, each line as "level message", until it closes its end.
func forwardEnvoyLog(r io.Reader, log *slog.Logger) {
	lines := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		level, message, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		switch {
		case len(line) == 0 || strings.HasPrefix(message, "caught ENVOY_SIGTERM"): // it was asked to
		case level == "error" || level == "critical":
			log.Error(message)
		default:
			log.Warn(message)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
