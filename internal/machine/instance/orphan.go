// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"wangell.loutres.me/internal/runtime/containerd"
)

// orphanPatience is the time between SIGTERM and SIGKILL for a containerd that nobody uses.
const orphanPatience = 10 * time.Second

// endOrphan ends the containerd that a killed command for images has left on a state folder with another run folder:
// two cannot share one root. That of the same run folder stays, to be taken over. The caller has the state folder's
// lock. The error says which process is in the way if it is another one.
func endOrphan(c Config, log *slog.Logger) error {
	file := containerd.OwnLock(c.StateDir)
	p, err := openHolder(file)
	if p == nil {
		return err
	}
	defer p.Close()
	pid := p.PID()
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return fmt.Errorf("process with the lock %s: %w", file, err)
	}
	// The process may have ended before that, and its number have been given to another one.
	if now, err := holderOf(file); err != nil || now != pid {
		return err
	}
	args := strings.Split(strings.TrimRight(string(command), "\x00"), "\x00")
	runDir, own := runDirOf(args)
	if own && sameFile(runDir, c.RunDir) {
		return nil
	}
	_, used, err := load(runDir)
	if !own || used || err != nil {
		return errors.Join(err, fmt.Errorf("the images in %s are in use by process %d (%s): end it, or give another "+
			"--state-dir", c.StateDir, pid, strings.Join(args, " ")))
	}
	log.Warn("ending the containerd of a command for images that was killed", "pid", pid, "run-dir", runDir)
	if err := p.Stop(orphanPatience); err != nil {
		return fmt.Errorf("end the containerd of a killed command for images (pid %d): %w", pid, err)
	}
	return nil
}

// runDirOf returns the run folder of an own containerd by its arguments; false if another program has them.
func runDirOf(args []string) (string, bool) {
	if len(args) != 3 || filepath.Base(args[0]) != "containerd" || args[1] != "--config" {
		return "", false
	}
	runDir := filepath.Dir(filepath.Dir(args[2]))
	return runDir, args[2] == containerd.OwnConfigFile(runDir)
}
