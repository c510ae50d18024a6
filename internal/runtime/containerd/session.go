// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/process"
)

// session is the session of processes (setsid(2)) that a command in a container leads: runc makes one for each. A
// process that has left it, as daemons do, is none of the command's.
type session struct {
	client    *client.Client
	container string
	leader    uint32
}

// end ends the processes of the session. They get SIGHUP, as when a terminal is closed, and those that are left after
// grace get SIGKILL; without a grace period all get SIGKILL. The error says which do not end before ctx does.
func (s session) end(ctx context.Context, grace time.Duration) error {
	hangup, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	told := map[int]bool{}
	for {
		list, err := s.processes(ctx)
		if err != nil || len(list) == 0 {
			return err
		}
		patience, kill := hangup, hangup.Err() != nil
		if kill {
			patience = ctx
		}
		var left []string
		for _, p := range list {
			switch {
			case kill:
				err = errors.Join(err, p.Signal(unix.SIGKILL))
			case !told[p.PID()]:
				told[p.PID()] = true
				err = errors.Join(err, p.Signal(unix.SIGHUP), p.Signal(unix.SIGCONT)) // a stopped one would not notice
			}
		}
		for _, p := range list {
			select {
			case <-p.Ended():
			case <-patience.Done():
				left = append(left, strconv.Itoa(p.PID()))
			}
			p.Close()
		}
		if err != nil {
			return fmt.Errorf("end the processes of a command: %w", err)
		}
		if ctx.Err() != nil && len(left) > 0 {
			return fmt.Errorf("processes %s of a command have not ended: %w", strings.Join(left, ", "), ctx.Err())
		}
	}
}

// processes returns the processes of the session that run, in order. The caller closes them.
func (s session) processes(ctx context.Context) ([]*process.Process, error) {
	reply, err := s.client.TaskService().ListPids(ctx, &tasks.ListPidsRequest{ContainerID: s.container})
	if err != nil {
		return nil, absent(err)
	}
	var list []*process.Process
	for _, info := range reply.Processes {
		p, err := process.Open(int(info.Pid))
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			for _, p := range list {
				p.Close()
			}
			return nil, err
		}
		// Read while the pidfd is open, so that the number cannot mean another process.
		fields, err := process.Stat(p.PID())
		if err != nil || len(fields) <= process.StatSession || ended(info.Pid) ||
			fields[process.StatSession] != strconv.FormatUint(uint64(s.leader), 10) {
			p.Close()
			continue
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *process.Process) int { return a.PID() - b.PID() })
	return list, nil
}
