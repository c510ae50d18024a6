// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// Down removes an instance: it asks the process of a running one to exit, kills it if it has not done so within
// patience, and removes what a killed instance left. An instance that does not exist is not an error. The
// configuration kept in the run folder takes precedence over c.
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
		log.Info("removing what a killed instance left", "run-dir", c.RunDir)
		if now, err := ownNetns(); err != nil || now != c.Netns {
			log.Warn("the instance ran in another network namespace: its device wangell0 may still exist there", "error", err)
		}
		if err := destroy(ctx, c); err != nil {
			return errors.Join(err, l.release())
		}
	}
	return l.remove()
}

// end makes the process that holds the run folder exit.
func end(ctx context.Context, c Config, patience time.Duration, log *slog.Logger) error {
	p, err := openHolder(c.lockFile())
	if p == nil {
		return err
	}
	defer p.Close()
	pid := p.PID()
	log.Info("asking the instance to exit", "pid", pid, "run-dir", c.RunDir)
	if err := p.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("stop process %d of the instance: %w", pid, err)
	}
	if exited, err := p.Wait(ctx, patience); exited || err != nil {
		return err
	}
	log.Warn("the instance does not exit; killing it", "pid", pid, "after", patience)
	if err := p.Signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d of the instance: %w", pid, err)
	}
	_, err = p.Wait(ctx, patience)
	return err
}
