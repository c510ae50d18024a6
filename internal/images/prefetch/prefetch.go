// SPDX-License-Identifier: Apache-2.0

// Package prefetch keeps images on a node: it pulls those of a wanted set, protects them from garbage collection, and
// reports progress.
package prefetch

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

const (
	// parallel is the number of images that are handled at the same time.
	parallel = 2
	// firstRetry and lastRetry bound the pause after a failure, which doubles. kubelet has the same limits.
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
	// retryTold is how long a retried pull must last to be reported.
	retryTold = 3 * time.Second
	// lookAgain is the interval at which the presence of images is checked, because others may remove them.
	lookAgain = 5 * time.Minute
	// progressEvery is how often the progress of a pull is reported.
	progressEvery = 5 * time.Second
)

// Store are the images of a container runtime. cri.Images is one.
type Store interface {
	// Look returns an image and whether it is present.
	Look(ctx context.Context, ref string) (cri.Image, bool, error)
	// Pull pulls an image. It may return a cri.ImageError.
	Pull(ctx context.Context, ref string) error
	// LazyReady returns why this node cannot pull lazily; nil if it can. It may return a cri.ImageError.
	LazyReady(ctx context.Context) error
	// PullLazily pulls an image for pods that start before it is complete. It may return a cri.ImageError.
	PullLazily(ctx context.Context, ref string) error
	// LazyFormat reports whether an image has a layer in a lazy format; known is false if that cannot be determined.
	LazyFormat(ctx context.Context, ref string) (lazy, known bool)
	// Whole reports whether an image on the node is complete, so that other pods can use it as well.
	Whole(ctx context.Context, ref string) (bool, error)
	// Progress returns the bytes of an image that are present during a pull that began at a time, and their total;
	// known is false if that cannot be determined.
	Progress(ctx context.Context, ref string, began time.Time) (done, total uint64, known bool)
	// Fetched returns the bytes of an image's layers that a pull begun at a time has fetched, and when the last of
	// them arrived; known is false if nothing was fetched, or if that cannot be determined.
	Fetched(ctx context.Context, ref string, began time.Time) (bytes uint64, last time.Time, known bool)
	// Name returns the name under which Pinned lists an image.
	Name(ref string) string
	// Pin protects an image from garbage collection until Unpin. It reports whether the runtime can do that.
	Pin(ctx context.Context, ref string) (bool, error)
	Unpin(ctx context.Context, name string) error
	// Pinned returns the names of all images that Pin has pinned, also in an earlier process.
	Pinned(ctx context.Context) ([]string, error)
}

// Config configures a Keeper.
type Config struct {
	Store Store
	// Report gets the state of an image whenever it changes. It is called by one goroutine at a time and may call
	// Keeper.Reports, but not Want.
	Report func(wire.ImageReport)
	// Progress is called with the progress of a pull every ProgressEvery (5 s if that is 0) while it changes. It is
	// called by several goroutines, and may be nil.
	Progress      func(wire.ImagePulled)
	ProgressEvery time.Duration
	// Log may be nil.
	Log *slog.Logger
	// FirstRetry, LastRetry and LookAgain replace the defaults of these pauses: 10 s, 5 min and 5 min.
	FirstRetry, LastRetry, LookAgain time.Duration
}

// Keeper keeps a set of images. Before the first call of Want, the set is unknown.
type Keeper struct {
	cfg     Config
	metrics metrics
	more    chan struct{} // has an element if there may be something to do

	mu      sync.Mutex // guards what follows; held while Config.Report runs
	known   bool       // Want was called
	entries map[string]*entry
	busy    int  // entries that are being handled
	tidy    bool // pins may be left of images that are not wanted
	tidying bool
	tidyAt  time.Time // not before
	noPins  bool      // the runtime cannot pin, which was logged
}

// entry is a wanted image.
type entry struct {
	want   wire.WantedImage
	report wire.ImageReport
	due    time.Time // when it is checked next
	pause  time.Duration
	cancel context.CancelFunc // of the work on it; nil if there is none
	pulled bool               // it was pulled under the revision of want
	again  bool               // its pin may have been removed meanwhile
	bad    wire.ImageReport   // reported in place of its presence until badFor
	badFor time.Time

	// before is the entry of a tag whose pull, still in progress, probably brings this image; next is the reverse
	// link. The image is checked once that pull has ended. Both are nil for most entries.
	before, next *entry
}

// New returns a Keeper, which does nothing before Run.
func New(cfg Config) *Keeper {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		to    *time.Duration
		value time.Duration
	}{{&cfg.FirstRetry, firstRetry}, {&cfg.LastRetry, lastRetry}, {&cfg.LookAgain, lookAgain},
		{&cfg.ProgressEvery, progressEvery}} {
		if *d.to == 0 {
			*d.to = d.value
		}
	}
	return &Keeper{cfg: cfg, metrics: newMetrics(), more: make(chan struct{}, 1), entries: map[string]*entry{}}
}

// Want replaces the set. Pulls of images that have left it are cancelled, but not the pull of a tag that its digest has
// replaced: the first node that has pulled a tag determines the digest, while others are still pulling the tag.
func (k *Keeper) Want(set []wire.WantedImage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wanted := make(map[string]bool, len(set))
	for _, w := range set {
		wanted[w.Ref] = true
		e := k.entries[w.Ref]
		switch {
		case e == nil:
			k.entries[w.Ref] = &entry{
				want: w, report: wire.ImageReport{Ref: w.Ref, State: wire.ImageWaiting, Since: monotime.Now()},
			}
		case e.want != w:
			e.pulled = e.pulled && e.want.Revision == w.Revision
			e.want, e.due, e.pause = w, time.Time{}, 0
		}
	}
	for ref, e := range k.entries {
		if wanted[ref] {
			continue
		}
		delete(k.entries, ref)
		if e.before != nil {
			e.before.cancel()
		}
		if e.cancel != nil && !k.handOver(e) {
			e.cancel()
		}
	}
	k.known, k.tidy, k.tidyAt = true, true, time.Time{}
	k.notify()
}

// handOver continues the pull of a tag for the digest that has replaced it, and reports whether there is one. k.mu is
// held.
func (k *Keeper) handOver(e *entry) bool {
	repository := imageref.Repository(e.want.Ref)
	if repository == "" || strings.Contains(e.want.Ref, "@") || e.report.State != wire.ImagePulling {
		return false
	}
	for ref, next := range k.entries {
		if next.report.State == wire.ImageWaiting && next.cancel == nil && next.before == nil &&
			next.want.Policy == e.want.Policy && strings.HasPrefix(ref, repository+"@") {
			next.before, e.next = e, next
			k.set(next, wire.ImageReport{State: wire.ImagePulling})
			return true
		}
	}
	return false
}

// Reports returns the states of all images that are wanted.
func (k *Keeper) Reports() []wire.ImageReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]wire.ImageReport, 0, len(k.entries))
	for _, e := range k.entries {
		out = append(out, e.report)
	}
	return out
}

// Unreadable reports an image as failed until a time, even though the runtime has it: some files of it cannot be
// fetched, so that other nodes serve its pods better. It does nothing if the image is not wanted lazily, or the time
// has passed.
func (k *Keeper) Unreadable(ref, why string, until time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[ref]
	if e == nil || !e.want.Lazy || !until.After(time.Now()) {
		return
	}
	e.bad = wire.ImageReport{State: wire.ImageFailed, Reason: cri.ReasonUnreadable, Message: text.Shorten(why, maxDetail)}
	e.badFor = until
	if e.report.State == wire.ImagePresent {
		k.set(e, e.bad)
		e.due = until
		k.notify()
	}
}

func (k *Keeper) notify() {
	select {
	case k.more <- struct{}{}:
	default:
	}
}

// set changes the state of an image and reports it, unless nothing is new. k.mu is held.
func (k *Keeper) set(e *entry, r wire.ImageReport) {
	r.Ref = e.want.Ref
	r.Since = e.report.Since
	if r.Equal(&e.report) || k.entries[r.Ref] != e {
		return
	}
	if r.State != e.report.State {
		r.Since = monotime.Now()
	}
	e.report = r
	k.cfg.Report(r)
}

// maxDetail bounds the text of an error, so that it fits a report.
const maxDetail = 600

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) {
	k.metrics.pulls.Describe(ch)
	k.metrics.seconds.Describe(ch)
	k.metrics.phases.Describe(ch)
	k.metrics.bytes.Describe(ch)
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	k.metrics.pulls.Collect(ch)
	k.metrics.seconds.Collect(ch)
	k.metrics.phases.Collect(ch)
	k.metrics.bytes.Collect(ch)
}
