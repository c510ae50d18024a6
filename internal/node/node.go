// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/freezer"
)

// Run runs the daemon until ctx ends. It returns an error if the daemon cannot start, or not end cleanly.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.CrowdWait == 0 {
		cfg.CrowdWait = crowdWait
	}
	unlock, err := lock(ctx, cfg.RunDir, cfg.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := cfg.obtainKeys(ctx); err != nil {
		return err
	}
	g, err := gate.Open(gate.Config{
		Dir: cfg.RunDir, BPFDir: cfg.BPFDir, ServiceRanges: cfg.ServiceRanges, Interfaces: cfg.Interfaces,
		DefaultInterfaces: len(cfg.Interfaces) == 0, EncapPort: cfg.EncapPort, NodeAddr: cfg.NodeAddr,
		XDPMode: gate.XDPMode(cfg.XDPMode), Shortcut: cfg.Shortcut, RepliesByEdge: cfg.RepliesByEdge,
		Sizes: cfg.Sizes, Log: cfg.Log, WakeBudgets: cfg.WakeBudgets, ProofKey: [16]byte(cfg.Keys.Proof[:]),
	})
	if err != nil {
		return err
	}
	attached := g.Attached()
	for name, xdp := range attached {
		cfg.Log.Info("gate attached", "interface", name, "xdp", xdp.Mode, "reason", xdp.Why)
	}
	if len(attached) == 0 {
		cfg.Log.Warn("no interface has a default route: only clients on this machine reach services (see --interface)")
	}
	clean := false
	if cfg.NoARP { // also what an earlier daemon announced
		err = g.Announce(false, nil)
	}
	if err == nil {
		clean, err = newDaemon(cfg, g).run(ctx)
	}
	err = errors.Join(err, g.Close())
	if clean {
		err = errors.Join(err, remove(cfg.RunDir, cfg.BPFDir, cfg.CgroupRoot))
	}
	return err
}

// Clean removes the gate that an ended daemon left behind: programs, maps, devices, and the bpf file system, unless
// bpfDir names a folder in another one. It must be called in the gate's network namespace. It does nothing if there is
// no gate, and fails while a daemon runs.
//
// Pods that the daemon has frozen run again; cgroupRoot is as in Config.
func Clean(runDir, bpfDir, cgroupRoot string) error {
	unlock, err := tryLock(runDir)
	if err != nil {
		return err
	}
	return errors.Join(remove(runDir, bpfDir, cgroupRoot), unlock())
}

func remove(runDir, bpfDir, cgroupRoot string) error {
	thawed := thawNoted(freezeRecordsIn(runDir), freezer.New(cgroupRoot))
	if err := (&gate.Config{Dir: runDir, BPFDir: bpfDir}).Remove(); err != nil {
		return errors.Join(thawed, fmt.Errorf("removing the gate of %s: %w", runDir, err))
	}
	return errors.Join(thawed, forgetKeys(runDir))
}

// lockAgain is the interval of attempts to take a lock that another daemon holds.
const lockAgain = 50 * time.Millisecond

// errLocked means that another daemon holds the lock.
var errLocked = errors.New("another daemon uses this folder")

// lock locks a folder. It waits until no other daemon uses the folder: the previous one may still be ending.
func lock(ctx context.Context, runDir string, log *slog.Logger) (unlock func() error, err error) {
	for logged := false; ; logged = true {
		unlock, err := tryLock(runDir)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		if !logged {
			log.Info("waiting for another daemon to end", "folder", runDir)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockAgain):
		}
	}
}

// tryLock locks a folder, or returns errLocked. The kernel releases the lock when the process ends, in whatever way. A
// folder that does not exist needs no lock.
func tryLock(runDir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(runDir, "daemon.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("locking the daemon's folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", runDir, errLocked)
		}
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return f.Close, nil
}
