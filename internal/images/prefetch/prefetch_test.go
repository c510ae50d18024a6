// SPDX-License-Identifier: Apache-2.0

package prefetch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/wire"
)

const pinLabel = "io.cri-containerd.pinned"

// node is a node with a fake container runtime and a Keeper.
type node struct {
	t      *testing.T
	rt     *critest.Runtime
	keeper *Keeper
	stop   func()

	mu      sync.Mutex
	reports []wire.ImageReport
	pulled  []wire.ImagePulled
	lazy    lazyNode
}

// setLazy changes what the node can do lazily.
func (n *node) setLazy(change func(*lazyNode)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.lazy)
}

// halfPulled is a Store whose pulls are always at the half.
type halfPulled struct{ lazyStore }

func (halfPulled) Progress(context.Context, string, time.Time) (done, total uint64, known bool) {
	return 5, 10, true
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, rt: critest.New(t), lazy: lazyNode{lazily: map[string]bool{}}}
	n.rt.Start()
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// start starts a Keeper on the node, with short pauses.
func (n *node) start() {
	store, err := cri.OpenImages(n.rt.Path)
	if err != nil {
		n.t.Fatal(err)
	}
	n.keeper = New(Config{
		Store: halfPulled{lazyStore{store, n}}, ProgressEvery: 10 * time.Millisecond,
		Progress: func(p wire.ImagePulled) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.pulled = append(n.pulled, p)
		},
		FirstRetry: 20 * time.Millisecond, LastRetry: 50 * time.Millisecond, LookAgain: 50 * time.Millisecond,
		Report: func(r wire.ImageReport) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reports = append(n.reports, r)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.keeper.Run(ctx) }()
	n.stop = sync.OnceFunc(func() { cancel(); <-done; store.Close() })
}

// state returns the last report of an image.
func (n *node) state(ref string) wire.ImageReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range slices.Backward(n.reports) {
		if r.Ref == ref {
			return r
		}
	}
	return wire.ImageReport{}
}

func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("timeout: %s; %d reports, %d pulls", what, len(n.reports), len(n.rt.Images.Pulls()))
		}
	}
}

func (n *node) present(ref string) {
	n.t.Helper()
	n.until(ref+" is present", func() bool { return n.state(ref).State == wire.ImagePresent })
}

func (n *node) pinned(ref string) bool { return n.rt.Images.Labels(ref)[pinLabel] == "pinned" }

func want(refs ...string) (set []wire.WantedImage) {
	for _, r := range refs {
		set = append(set, wire.WantedImage{Ref: r, Policy: wire.ImageIfNotPresent})
	}
	return set
}

func TestWantedImagesArePulledPinnedAndReported(t *testing.T) {
	n := newNode(t)
	n.rt.Images.Add("there:v1")
	n.keeper.Want(want("registry.example/new:v1", "there:v1"))
	n.present("registry.example/new:v1")
	n.present("there:v1")
	if got := n.rt.Images.Pulls(); !slices.Equal(got, []string{"registry.example/new:v1"}) {
		t.Errorf("pulls %v", got)
	}
	if !n.pinned("registry.example/new:v1") || !n.pinned("there:v1") {
		t.Error("the images are not pinned")
	}
	if r := n.state("registry.example/new:v1"); r.Digest != critest.Digest || r.Size != 1000 || r.Since == 0 {
		t.Errorf("reported %+v", r)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.reports, func(r wire.ImageReport) bool { return r.Ref == "registry.example/new:v1" })
	if n.reports[i].State != wire.ImagePulling {
		t.Errorf("first report %+v", n.reports[i])
	}
}

// How much is there is told while a pull goes on, and not again while it stands still.
func TestProgressOfAPullIsTold(t *testing.T) {
	n := newNode(t)
	release := make(chan struct{})
	n.rt.Images.OnPull(func(context.Context, string) error { <-release; return nil })
	n.keeper.Want(want("a:v1"))
	told := func() []wire.ImagePulled {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Clone(n.pulled)
	}
	n.until("progress is told", func() bool { return len(told()) > 0 })
	time.Sleep(50 * time.Millisecond) // some more looks at it
	close(release)
	n.present("a:v1")
	if got := told(); !slices.Equal(got, []wire.ImagePulled{{Ref: "a:v1", Done: 5, Total: 10}}) {
		t.Errorf("told %+v", got)
	}
}

func TestFailuresAreExplainedAndTriedAgain(t *testing.T) {
	n := newNode(t)
	answers := map[string]error{
		"r.example/gone:v1":   status.Error(codes.NotFound, `failed to pull and unpack image: r.example/gone:v1: not found`),
		"r.example/secret:v1": status.Error(codes.Unknown, "failed to authorize: unexpected status: 401 Unauthorized"),
		"r.example/huge:v1":   status.Error(codes.Unknown, "failed to copy: write /x: no space left on device"),
		"r.example/far:v1": status.Error(codes.Unknown,
			`failed to do request: Head "https://r.example/v2/": dial tcp 192.0.2.1:443: connect: connection refused`),
		"r.example/limited:v1": status.Error(codes.Unknown, "unexpected status from HEAD request to https://r.example/v2/: "+
			"429 Too Many Requests"),
		"r.example/odd:v1": status.Error(codes.Unknown, "something else"),
	}
	n.rt.Images.OnPull(func(_ context.Context, ref string) error { return answers[ref] })
	for ref, reason := range map[string]string{
		"r.example/gone:v1": "NotFound", "r.example/secret:v1": "Unauthorized", "r.example/huge:v1": "DiskFull",
		"r.example/far:v1": "Unreachable", "r.example/odd:v1": "PullFailed",
		"r.example/limited:v1": "TooManyRequests",
	} {
		n.keeper.Want(want(ref))
		n.until(ref+" failed", func() bool { return n.state(ref).State == wire.ImageFailed })
		if r := n.state(ref); r.Reason != reason || r.Message == "" || strings.Contains(r.Message, "rpc error") {
			t.Errorf("%s: %+v", ref, r)
		}
	}
	n.keeper.Want(want("r.example/gone:v1"))
	n.until("it is tried again", func() bool { return len(n.rt.Images.Pulls()) > 9 })
	n.rt.Images.OnPull(nil)
	n.present("r.example/gone:v1")
}

func TestPolicyDecidesWhatIsPulled(t *testing.T) {
	n := newNode(t)
	n.rt.Images.Add("always:v1")
	set := []wire.WantedImage{
		{Ref: "never:v1", Policy: wire.ImageNever}, {Ref: "always:v1", Policy: wire.ImageAlways, Revision: 1},
	}
	n.keeper.Want(set)
	n.until("Never fails", func() bool { return n.state("never:v1").Reason == "NotPresent" })
	n.present("always:v1")
	n.keeper.Want(set)
	n.rt.Images.Add("never:v1") // an administrator loads it
	n.present("never:v1")
	if got := n.rt.Images.Pulls(); !slices.Equal(got, []string{"always:v1"}) {
		t.Errorf("pulls %v", got)
	}
	set[1].Revision = 2
	n.keeper.Want(set)
	n.until("Always pulls again", func() bool { return len(n.rt.Images.Pulls()) == 2 })
}

// Without the registry, an image with the policy Always counts as missing although the node has it: kubelet does not
// start it either. It is there once the registry answers.
func TestPolicyAlwaysIsNotReadyWithoutTheRegistry(t *testing.T) {
	n := newNode(t)
	n.rt.Images.Add("r.example/always:v1")
	n.rt.Images.OnPull(func(context.Context, string) error {
		return status.Error(codes.Unknown, "failed to do request: dial tcp 192.0.2.1:443: connect: connection refused")
	})
	n.keeper.Want([]wire.WantedImage{{Ref: "r.example/always:v1", Policy: wire.ImageAlways, Revision: 1}})
	n.until("it failed", func() bool { return n.state("r.example/always:v1").Reason == "Unreachable" })
	n.rt.Images.OnPull(nil)
	n.present("r.example/always:v1")
}

func TestNoMoreThanTwoPullsRunAtOnce(t *testing.T) {
	n := newNode(t)
	release := make(chan struct{})
	n.rt.Images.OnPull(func(ctx context.Context, _ string) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	var refs []string
	for i := range 6 {
		refs = append(refs, fmt.Sprintf("i%d:v1", i))
	}
	n.keeper.Want(want(refs...))
	n.until("two pulls run", func() bool { return len(n.rt.Images.Pulls()) == 2 })
	close(release)
	for _, r := range refs {
		n.present(r)
	}
	if most := n.rt.Images.MostPulls(); most != 2 {
		t.Errorf("%d pulls at once", most)
	}
}

// An image that no service needs is let go: its pull is cancelled, its pin removed. Pins of others stay.
func TestImagesThatAreNotWantedAreLetGo(t *testing.T) {
	n := newNode(t)
	n.rt.Images.Add("foreign:v1")
	n.rt.Images.SetLabel("foreign:v1", pinLabel, "pinned")
	n.keeper.Want(want("a:v1", "foreign:v1"))
	n.present("a:v1")
	n.present("foreign:v1")
	begun, cancelled := make(chan struct{}), make(chan struct{})
	n.rt.Images.OnPull(func(ctx context.Context, _ string) error {
		close(begun)
		<-ctx.Done()
		close(cancelled)
		return ctx.Err()
	})
	n.keeper.Want(want("a:v1", "slow:v1"))
	<-begun // the keeper says that it pulls before the runtime is asked
	if r := n.state("slow:v1"); r.State != wire.ImagePulling {
		t.Errorf("while it is pulled: %+v", r)
	}
	n.keeper.Want(want())
	<-cancelled
	n.until("the pin is gone", func() bool { return !n.pinned("a:v1") })
	if !n.pinned("foreign:v1") {
		t.Error("the pin of somebody else was removed")
	}
}

// A service that was deleted while no daemon ran leaves no pin, and one that is wanted again keeps it.
func TestPinsOfAnEarlierDaemonAreTidied(t *testing.T) {
	n := newNode(t)
	n.keeper.Want(want("a:v1", "b:v1"))
	n.present("a:v1")
	n.present("b:v1")
	n.stop()
	n.start()
	time.Sleep(20 * time.Millisecond) // a daemon without a controller
	if !n.pinned("a:v1") || !n.pinned("b:v1") {
		t.Fatal("pins are removed before the set is known")
	}
	n.keeper.Want(want("b:v1"))
	n.until("a is not pinned", func() bool { return !n.pinned("a:v1") })
	n.until("b is pinned", func() bool { return n.pinned("b:v1") })
	if got := n.rt.Images.Pulls(); len(got) != 2 {
		t.Errorf("pulls %v", got)
	}
	n.stop()
	store, err := cri.OpenImages(n.rt.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := New(Config{Store: store}).Release(t.Context()); err != nil || n.pinned("b:v1") {
		t.Errorf("release: %v, pinned: %t", err, n.pinned("b:v1"))
	}
}

func TestADaemonThatIsRestartedDuringAPullPullsAgain(t *testing.T) {
	n := newNode(t)
	n.rt.Images.OnPull(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	n.keeper.Want(want("a:v1"))
	n.until("a pull runs", func() bool { return n.state("a:v1").State == wire.ImagePulling })
	n.stop()
	n.rt.Images.OnPull(nil)
	n.start()
	n.keeper.Want(want("a:v1"))
	n.present("a:v1")
}

func TestAnImageThatIsRemovedIsPulledAgain(t *testing.T) {
	n := newNode(t)
	n.keeper.Want(want("a:v1"))
	n.present("a:v1")
	n.rt.Images.Remove("a:v1")
	n.until("it is back", func() bool { return n.pinned("a:v1") && len(n.rt.Images.Pulls()) == 2 })
}

// While the runtime is restarted, an image that was present stays so.
func TestARestartOfTheRuntimeIsNoFailure(t *testing.T) {
	n := newNode(t)
	n.keeper.Want(want("a:v1"))
	n.present("a:v1")
	n.rt.Stop()
	time.Sleep(200 * time.Millisecond) // it is looked at meanwhile
	n.rt.Start()
	n.keeper.Want(want("a:v1", "b:v1"))
	n.present("b:v1")
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.reports {
		if r.Ref == "a:v1" && r.State == wire.ImageFailed {
			t.Errorf("reported %+v", r)
		}
	}
}
