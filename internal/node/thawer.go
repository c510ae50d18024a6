// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/freezer"
)

const (
	// thawerLooks is the interval at which a Thawer looks whether the daemon is there.
	thawerLooks = 250 * time.Millisecond
	// daemonAway is how long a daemon may be away before the pods that it has frozen run again. A daemon that is restarted
	// at once is back within that time, and its pods stay frozen.
	daemonAway = 2 * time.Second
)

// Thawer lets frozen pods run while there is no daemon that could thaw them. It must outlive the daemon, and so belongs
// to another process.
type Thawer struct {
	// RunDir and CgroupRoot are those of the daemon.
	RunDir, CgroupRoot string
	Log                *slog.Logger
}

// Run thaws the pods of a daemon that was killed, whenever it has been away for two seconds, until ctx ends. The next
// daemon finds them running; nothing else freezes pods. A daemon that ends in order has thawed its pods itself.
func (t Thawer) Run(ctx context.Context) {
	t.run(ctx, freezer.New(t.CgroupRoot), daemonAway)
}

func (t Thawer) run(ctx context.Context, c cgroups, patience time.Duration) {
	ticker := time.NewTicker(thawerLooks)
	defer ticker.Stop()
	records, away := freezeRecordsIn(t.RunDir), absence{patience: patience}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		noted, err := records.read()
		if len(noted) == 0 && err == nil {
			away.since = 0
			continue
		}
		unlock, err := tryLock(t.RunDir)
		if away.isOver(err == nil, monotime.Now()) {
			err = t.thaw(records, c, len(noted))
		}
		if unlock != nil {
			err = errors.Join(err, unlock())
		}
		if err != nil && !errors.Is(err, errLocked) {
			t.Log.Error("cannot let the frozen pods of a daemon run that is away", "error", err, "in", thawerLooks)
		}
	}
}

// thaw lets all frozen pods run. The daemon's lock is held.
func (t Thawer) thaw(records freezeRecords, c cgroups, pods int) error {
	if err := thawNoted(records, c); err != nil {
		return err
	}
	t.Log.Warn("the daemon is away: its frozen pods run until it is back", "pods", pods)
	return nil
}

// absence tracks how long a daemon has been away.
type absence struct {
	patience time.Duration
	since    monotime.Time // when it was first missed; 0 while it is there
}

// isOver reports whether the daemon has been away for longer than patience; isAway says whether it is away at a time.
func (a *absence) isOver(isAway bool, now monotime.Time) bool {
	switch {
	case !isAway:
		a.since = 0
	case a.since == 0:
		a.since = now
	}
	return isAway && now.Sub(a.since) >= a.patience
}
