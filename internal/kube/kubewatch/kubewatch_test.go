// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// patience bounds the wait for what must happen.
const patience = 60 * time.Second

func lease(holder string) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "wangell", Name: "leader"}}
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	return l
}

// followed runs a Leader's Follow and returns the addresses that it reports.
func followed(t *testing.T, l *Leader) chan string {
	t.Helper()
	out := make(chan string, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Follow(ctx, func(addr string) { out <- addr })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return out
}

func expect(t *testing.T, moved chan string, want string) {
	t.Helper()
	select {
	case got := <-moved:
		if got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("%q is not reported", want)
	}
}

func TestLeaderIsFollowedAndCached(t *testing.T) {
	c := fake.NewClientset()
	events := watch.NewFake() // each event is taken before the next
	c.PrependReactor("list", "leases", func(a ktesting.Action) (bool, runtime.Object, error) {
		if got := a.(ktesting.ListAction).GetListRestrictions().Fields.String(); got != "metadata.name=leader" {
			t.Errorf("listed %q: there are rights for one object only", got)
		}
		return false, nil, nil
	})
	c.PrependWatchReactor("leases", func(a ktesting.Action) (bool, watch.Interface, error) {
		if got := a.(ktesting.WatchAction).GetWatchRestrictions().Fields.String(); got != "metadata.name=leader" {
			t.Errorf("watched %q: there are rights for one object only", got)
		}
		return true, events, nil
	})
	cache := filepath.Join(t.TempDir(), "leader")
	moved := followed(t, &Leader{Leases: c.CoordinationV1().Leases("wangell"), Name: "leader", Cache: cache,
		Log: slog.Default()})
	events.Add(lease("a/10.0.0.1:7946"))
	expect(t, moved, "10.0.0.1:7946")
	events.Modify(lease("a/10.0.0.1:7946")) // renewed
	events.Modify(lease(""))                // released
	events.Modify(lease("nonsense"))
	events.Modify(lease("b/10.0.0.2:7946"))
	expect(t, moved, "10.0.0.2:7946")
	events.Delete(lease("b/10.0.0.2:7946"))
	events.Add(lease("c/[fd00::1]:7946"))
	expect(t, moved, "[fd00::1]:7946")
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(cache); string(b) == "[fd00::1]:7946\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the address is not cached")
		}
	}
	// The next daemon uses it before the API server answers.
	down := fake.NewClientset()
	down.PrependReactor("list", "leases", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	next := followed(t, &Leader{Leases: down.CoordinationV1().Leases("wangell"), Name: "leader", Cache: cache,
		Log: slog.Default()})
	expect(t, next, "[fd00::1]:7946")
	if files, err := os.ReadDir(filepath.Dir(cache)); err != nil || len(files) != 1 {
		t.Errorf("left in the folder: %v (%v)", files, err)
	}
}

// An API server that lags behind may answer with the leader before.
func TestLeaderOfAnEarlierTermIsNotFollowedAgain(t *testing.T) {
	c := fake.NewClientset()
	events := watch.NewFake()
	c.PrependWatchReactor("leases", func(ktesting.Action) (bool, watch.Interface, error) { return true, events, nil })
	moved := followed(t, &Leader{Leases: c.CoordinationV1().Leases("wangell"), Name: "leader", Log: slog.Default()})
	of := func(uid types.UID, term int32, holder string) *coordinationv1.Lease {
		l := lease(holder)
		l.UID, l.Spec.LeaseTransitions = uid, &term
		return l
	}
	events.Add(of("1", 7, "a/10.0.0.1:7946"))
	expect(t, moved, "10.0.0.1:7946")
	events.Modify(of("1", 8, "b/10.0.0.2:7946"))
	expect(t, moved, "10.0.0.2:7946")
	events.Modify(of("1", 7, "a/10.0.0.1:7946"))
	events.Modify(of("1", 9, "a/10.0.0.1:7946"))
	expect(t, moved, "10.0.0.1:7946")
	events.Modify(of("2", 0, "c/10.0.0.3:7946")) // the Lease was deleted and created again
	expect(t, moved, "10.0.0.3:7946")
	select {
	case addr := <-moved:
		t.Errorf("also followed %s", addr)
	default:
	}
}

// However long the API server was down, the leader is known soon after it is back.
func TestLeaderIsFoundWhenTheAPIServerIsBack(t *testing.T) {
	c := fake.NewClientset(lease("a/10.0.0.1:7946"))
	var down atomic.Bool
	var requests atomic.Int32
	down.Store(true)
	c.PrependReactor("list", "leases", func(ktesting.Action) (bool, runtime.Object, error) {
		requests.Add(1)
		return down.Load(), nil, errors.New("connection refused")
	})
	moved := followed(t, &Leader{Leases: c.CoordinationV1().Leases("wangell"), Name: "leader", Log: slog.Default()})
	for end := time.Now().Add(patience); requests.Load() < 5; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the API server is not tried again")
		}
	}
	down.Store(false)
	expect(t, moved, "10.0.0.1:7946")
}

func TestAddressOfAnIdentity(t *testing.T) {
	for identity, want := range map[string]string{
		"pod-1/10.0.0.1:7946": "10.0.0.1:7946", "pod/[fd00::1]:7946": "[fd00::1]:7946",
		"": "", "pod": "", "10.0.0.1:7946": "", "pod/10.0.0.1": "", "pod/": "", "a/b/10.0.0.1:1": "",
	} {
		got, err := Address(identity)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", identity, got, err, want)
		}
	}
}

func TestDeletedDaemonSetIsNoticed(t *testing.T) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "wangell", Name: "daemon"}}
	dying := set.DeepCopy()
	dying.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for name, c := range map[string]struct {
		objects []runtime.Object
		events  func(*watch.FakeWatcher)
		deleted bool
	}{
		"changed":       {[]runtime.Object{set}, func(w *watch.FakeWatcher) { w.Modify(set) }, false},
		"deleted":       {[]runtime.Object{set}, func(w *watch.FakeWatcher) { w.Delete(set) }, true},
		"being deleted": {[]runtime.Object{set}, func(w *watch.FakeWatcher) { w.Modify(dying) }, true},
		"created again": {[]runtime.Object{set}, func(w *watch.FakeWatcher) { w.Delete(set); w.Add(set) },
			false},
		"of another name": {nil, func(w *watch.FakeWatcher) { w.Delete(set) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(c.objects...)
			events := watch.NewFake()
			client.PrependWatchReactor("daemonsets", ktesting.DefaultWatchReactor(events, nil))
			d := &DaemonSet{DaemonSets: client.AppsV1().DaemonSets("wangell"), Name: "daemon", Log: slog.Default()}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); d.Follow(ctx) }()
			c.events(events)
			// The last event was received; Follow has handled it when it returns.
			cancel()
			<-done
			// The fake server's list does not change with the fake watch.
			if got := d.deleted.Load(); got != c.deleted {
				t.Errorf("deleted: %v", got)
			}
		})
	}
}

// A daemon may be asked to end before its watch has reported the deletion, and when it has no rights any more.
func TestEndingDaemonAsksWhetherItsDaemonSetIsDeleted(t *testing.T) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "wangell", Name: "daemon"}}
	dying := set.DeepCopy()
	dying.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	gr := schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	for name, c := range map[string]struct {
		list    []appsv1.DaemonSet
		err     error
		unknown bool // the daemon has never seen the DaemonSet
		deleted bool
	}{
		"there":          {list: []appsv1.DaemonSet{*set}},
		"being deleted":  {list: []appsv1.DaemonSet{*dying}, deleted: true},
		"gone":           {deleted: true},
		"forbidden":      {err: apierrors.NewForbidden(gr, "daemon", nil), deleted: true},
		"unauthorized":   {err: apierrors.NewUnauthorized("the pod is gone")},
		"server is away": {err: errors.New("connection refused")},
		"never existed":  {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("list", "daemonsets", func(ktesting.Action) (bool, runtime.Object, error) {
				return true, &appsv1.DaemonSetList{Items: c.list}, c.err
			})
			d := &DaemonSet{DaemonSets: client.AppsV1().DaemonSets("wangell"), Name: "daemon", Log: slog.Default()}
			d.existed.Store(!c.unknown)
			if got := d.Deleted(t.Context()); got != c.deleted {
				t.Errorf("deleted: %v", got)
			}
		})
	}
}
