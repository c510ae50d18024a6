// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/node"
)

// Down removes an instance: it asks the process of one that runs to end, kills it if it does not within patience, and
// removes what an instance that was killed left. An instance that is not there is not an error. Of c, what the instance itself kept
// in its run folder counts more.
func Down(ctx context.Context, c Config, patience time.Duration, log *slog.Logger) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := checkRights(ctx, c); err != nil {
		return err
	}
	l, err := acquire(c)
	var running *RunningError
	for errors.As(err, &running) {
		if err := end(ctx, c, patience, log); err != nil {
			return err
		}
		l, err = acquire(c)
	}
	if err != nil {
		return err
	}
	kept, found, err := load(c.RunDir)
	if err != nil {
		return errors.Join(err, l.release())
	}
	if found {
		c = kept
		log.Info("removing what an instance that was killed left", "run-dir", c.RunDir)
		if now, err := ownNetns(); err != nil || now != c.Netns {
			log.Warn("the instance was in another network namespace: if that is still there, its device wangell0 is too", "error", err)
		}
		if err := destroy(ctx, c); err != nil {
			return errors.Join(err, l.release())
		}
	}
	return l.remove()
}

// end ends the process that holds the run folder.
func end(ctx context.Context, c Config, patience time.Duration, log *slog.Logger) error {
	pid, err := holder(c)
	if err != nil || pid == 0 {
		return err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d of the instance: %w", pid, err)
	}
	defer unix.Close(process)
	// The number could have gone to another process before it was opened; the lock tells.
	if now, err := holder(c); err != nil || now != pid {
		return err
	}
	log.Info("asking the instance to end", "pid", pid, "run-dir", c.RunDir)
	if err := send(process, unix.SIGTERM); err != nil {
		return fmt.Errorf("end process %d of the instance: %w", pid, err)
	}
	if gone, err := waitGone(ctx, process, patience); gone || err != nil {
		return err
	}
	log.Warn("the instance does not end; it is killed", "pid", pid, "after", patience)
	if err := send(process, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d of the instance: %w", pid, err)
	}
	_, err = waitGone(ctx, process, patience)
	return err
}

// send sends a signal to a process, by its pidfd; one that has ended is not an error.
func send(process int, signal unix.Signal) error {
	if err := unix.PidfdSendSignal(process, signal, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// waitGone waits until a process has ended (its pidfd is readable then, pidfd_open(2)), at most for patience.
func waitGone(ctx context.Context, process int, patience time.Duration) (bool, error) {
	// poll(2) knows no context: it is called anew this often.
	const step = 100 * time.Millisecond
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(step.Milliseconds()))
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("wait for a process: %w", err)
		case n > 0:
			return true, nil
		}
	}
	return false, nil
}

// removeGate removes the gate of the instance and its devices.
func removeGate(c Config) error {
	if err := node.Clean(c.RunDir, ""); err != nil {
		return fmt.Errorf("remove the gate: %w", err)
	}
	return nil
}
