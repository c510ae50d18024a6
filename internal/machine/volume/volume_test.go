// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/ownns"
)

// The tests mount file systems, in a mount namespace of their own.
func TestMain(m *testing.M) { ownns.Main(m.Run) }

const mib = 1 << 20

// store is a Store with a folder of pods.
type store struct {
	*Store
	t    *testing.T
	pods string
}

func newStore(t *testing.T) store {
	t.Helper()
	dir := t.TempDir()
	s := store{NewStore(filepath.Join(dir, "state"), filepath.Join(dir, "pods")), t, filepath.Join(dir, "pods")}
	t.Cleanup(func() {
		if err := os.RemoveAll(s.pods); err != nil {
			t.Error(err)
		}
		if err := s.Sweep(); err != nil {
			t.Error(err)
		}
		if left := s.loops(); len(left) > 0 {
			t.Errorf("loop devices are left: %q", left)
		}
	})
	return s
}

// loops returns the files of the store that loop devices have.
func (s store) loops() (files []string) {
	all, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range all {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), s.dir) {
			files = append(files, strings.TrimSpace(string(text)))
		}
	}
	return files
}

func want(name string, size int64) Want {
	return Want{ID: ID{"default", name}, SizeBytes: size, Service: "default/" + name, UID: 1234, GID: 1234}
}

func (s store) mustHold(pod string, w Want) string {
	s.t.Helper()
	if err := s.Hold(s.t.Context(), pod, w); err != nil {
		s.t.Fatal(err)
	}
	return s.Path(w.ID)
}

func (s store) mustRelease(pod string) {
	s.t.Helper()
	if err := s.Release(s.t.Context(), pod); err != nil {
		s.t.Fatal(err)
	}
}

func (s store) write(file, text string) {
	s.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		s.t.Fatal(err)
	}
}

func (s store) read(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// both runs a test for volumes without a size and with one.
func both(t *testing.T, f func(t *testing.T, s store, size int64)) {
	for name, size := range map[string]int64{"folder": 0, "with a size": 16 * mib} {
		t.Run(name, func(t *testing.T) { f(t, newStore(t), size) })
	}
}

func TestVolumeOutlivesItsPods(t *testing.T) {
	both(t, func(t *testing.T, s store, size int64) {
		w := want("a.data", size)
		dir := s.mustHold("pod-1", w)
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Uid != 1234 || st.Gid != 1234 || st.Mode&0o777 != 0o755 {
			t.Errorf("%+v, %v", st, err)
		}
		s.write(dir+"/file", "first")
		s.mustRelease("pod-1")
		if size > 0 {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || len(s.loops()) > 0 {
				t.Errorf("it is still mounted: %v, %q", err, s.loops())
			}
		}
		s.mustHold("pod-2", w)
		if got := s.read(dir + "/file"); got != "first" {
			t.Errorf("the second pod reads %q", got)
		}
		list, err := s.List()
		if err != nil || len(list) != 1 || !slices.Equal(list[0].Pods, []string{"pod-2"}) || list[0].SizeBytes != size ||
			list[0].Service != "default/a.data" {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

func TestFullVolumeConcernsNoOther(t *testing.T) {
	s := newStore(t)
	full, other := s.mustHold("pod-1", want("full", 16*mib)), s.mustHold("pod-2", want("other", 16*mib))
	f, err := os.Create(full + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, zeroes{}, 16*mib); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("16 MiB in a volume of 16 MiB: %v", err)
	}
	u, err := s.Usage(t.Context(), ID{"default", "full"})
	if err != nil || u.AvailableBytes > 64<<10 || u.UsedBytes < 8*mib || u.Files != 2 {
		t.Errorf("%+v, %v", u, err)
	}
	s.write(other+"/file", "x")
	s.write(filepath.Join(s.dir, "x"), "x")
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The space of a volume is reserved, so a full disk is an error when the volume is made.
func TestVolumeLargerThanTheDiskIsRefused(t *testing.T) {
	s := newStore(t)
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.dir, 0); err != nil {
			t.Error(err)
		}
	})
	err := s.Hold(t.Context(), "pod", want("big", 16*mib))
	if err == nil || !strings.Contains(err.Error(), "reserve 16.0 MiB") || !strings.Contains(err.Error(), "MiB free") {
		t.Errorf("%v", err)
	}
	if made, err := filepath.Glob(filepath.Join(s.dir, "*", "*")); err != nil || len(made) > 0 {
		t.Errorf("left: %q, %v", made, err)
	}
}

func TestVolumeGrowsAndDoesNotShrink(t *testing.T) {
	s := newStore(t)
	dir := s.mustHold("pod", want("a", 16*mib))
	s.write(dir+"/file", "kept")
	if err := s.Hold(t.Context(), "other", want("a", 32*mib)); err == nil || !strings.Contains(err.Error(), "pod pod") {
		t.Errorf("growth of a volume in use: %v", err)
	}
	s.mustRelease("pod")
	s.mustHold("pod", want("a", 32*mib))
	if u, err := s.Usage(t.Context(), ID{"default", "a"}); err != nil || u.AvailableBytes < 20*mib {
		t.Errorf("%+v, %v", u, err)
	}
	if got := s.read(dir + "/file"); got != "kept" {
		t.Errorf("the file has %q", got)
	}
	s.mustRelease("pod")
	for size, want2 := range map[int64]string{16 * mib: "cannot shrink", 0: "cannot shrink"} {
		if err := s.Hold(t.Context(), "pod", want("a", size)); err == nil || !strings.Contains(err.Error(), want2) {
			t.Errorf("%d: %v", size, err)
		}
	}
	s.mustHold("pod", want("folder", 0))
	s.mustRelease("pod")
	err := s.Hold(t.Context(), "pod", want("folder", 16*mib))
	if err == nil || !strings.Contains(err.Error(), "cannot get one") {
		t.Errorf("a size for a folder: %v", err)
	}
}

func TestPodsOfSeveralServicesHoldOneVolume(t *testing.T) {
	s := newStore(t)
	w := want("common", 16*mib)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			if err := s.Hold(t.Context(), fmt.Sprint("pod-", i), w); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	s.write(s.Path(w.ID)+"/file", "x")
	for i := range 4 {
		if got := s.read(s.Path(w.ID) + "/file"); got != "x" || len(s.loops()) != 1 {
			t.Errorf("before release %d: %q, %q", i, got, s.loops())
		}
		s.mustRelease(fmt.Sprint("pod-", i))
	}
	if left := s.loops(); len(left) > 0 {
		t.Errorf("%q", left)
	}
}

// A file system that a container still has is not attached a second time.
func TestVolumeInUseGetsNoSecondDevice(t *testing.T) {
	s := newStore(t)
	w := want("a", 16*mib)
	dir := s.mustHold("pod-1", w)
	inside := t.TempDir()
	if err := unix.Mount(dir, inside, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	s.mustRelease("pod-1")
	s.mustHold("pod-2", w)
	s.write(inside+"/file", "from the first")
	if got := s.read(dir + "/file"); got != "from the first" || len(s.loops()) != 1 {
		t.Errorf("%q, %q", got, s.loops())
	}
	if err := unix.Unmount(inside, 0); err != nil {
		t.Fatal(err)
	}
}

func TestRemovedVolumeStaysForItsPod(t *testing.T) {
	both(t, func(t *testing.T, s store, size int64) {
		w := want("a", size)
		dir := s.mustHold("pod-1", w)
		open, err := os.Create(dir + "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		if err := s.RemoveUnheld(t.Context(), w.ID); !errors.As(err, &HeldError{}) {
			t.Errorf("a volume in use: %v", err)
		}
		if err := s.Remove(t.Context(), w.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := open.WriteString("still there"); err != nil {
			t.Error(err)
		}
		s.mustHold("pod-2", w)
		if got := s.read(dir + "/file"); !strings.Contains(got, "no such file") {
			t.Errorf("the new volume has %q", got)
		}
		open.Close()
		s.mustRelease("pod-1")
		s.mustRelease("pod-2")
		if left, err := filepath.Glob(filepath.Join(s.dir, removedDir, "*")); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	})
}

func TestSweepEndsWhatACrashLeft(t *testing.T) {
	s := newStore(t)
	s.mustHold("pod", want("a", 16*mib))
	if err := os.RemoveAll(filepath.Join(s.pods, "pod")); err != nil { // as a restart of the machine does
		t.Fatal(err)
	}
	half := place(filepath.Join(s.dir, newDir, "half"))
	if err := half.build(t.Context(), 16*mib); err != nil {
		t.Fatal(err)
	}
	if _, err := half.mount(Record{SizeBytes: 16 * mib}); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(string(half)); !errors.Is(err, os.ErrNotExist) || len(s.loops()) > 0 {
		t.Errorf("%v, %q", err, s.loops())
	}
}

// tree fills a folder with what a backup has to keep, and returns a description of a folder to compare it with.
func tree(t *testing.T, dir string) {
	t.Helper()
	if err := errors.Join(
		os.Chmod(dir, 0o700),
		os.Mkdir(dir+"/sub", 0o2750),
		os.WriteFile(dir+"/sub/file", []byte("content"), 0o640),
		os.Chown(dir+"/sub/file", 4321, 1),
		os.Link(dir+"/sub/file", dir+"/hard"),
		os.Symlink("../outside", dir+"/link"),
		os.WriteFile(dir+"/.wh.no-whiteout", nil, 0o600),
		os.WriteFile(dir+"/sparse", nil, 0o600), os.Truncate(dir+"/sparse", 4*mib),
		unix.Setxattr(dir+"/hard", "user.note", []byte("kept"), 0),
		os.Chtimes(dir+"/hard", time.Unix(1e9, 123456789), time.Unix(1e9, 123456789)),
	); err != nil {
		t.Fatal(err)
	}
}

func describe(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		note := make([]byte, 16)
		n, _ := unix.Lgetxattr(path, "user.note", note)
		link, _ := os.Readlink(path)
		fmt.Fprintf(&text, "%s %o %d:%d %q %q", rel, st.Mode, st.Uid, st.Gid, note[:max(n, 0)], link)
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, " %d links %d.%09d %d %.20q", st.Nlink, st.Mtim.Sec, st.Mtim.Nsec, len(content), content)
		}
		text.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestBackupRestoresEverything(t *testing.T) {
	both(t, func(t *testing.T, s store, size int64) {
		w := want("a", size)
		tree(t, s.mustHold("pod", w))
		before := describe(t, s.Path(w.ID))
		var file bytes.Buffer
		if err := s.Backup(t.Context(), w.ID, &file, false); !errors.As(err, &HeldError{}) {
			t.Errorf("backup of a volume in use: %v", err)
		}
		s.mustRelease("pod")
		if err := s.Backup(t.Context(), w.ID, &file, false); err != nil {
			t.Fatal(err)
		}
		backup := file.Bytes()
		for _, to := range []ID{w.ID, {"other", "b"}} {
			err := s.Restore(t.Context(), to, bytes.NewReader(backup), size, false)
			if to == w.ID {
				if err == nil || !strings.Contains(err.Error(), "--replace") {
					t.Errorf("%v", err)
				}
				dir := s.mustHold("pod", w)
				s.write(dir+"/later", "x")
				s.mustRelease("pod")
				err = s.Restore(t.Context(), to, bytes.NewReader(backup), 0, true)
			}
			if err != nil {
				t.Fatal(err)
			}
			dir := s.mustHold("pod", Want{ID: to, SizeBytes: size})
			if after := describe(t, dir); after != before {
				t.Errorf("%s: before\n%s\nafter\n%s", to, before, after)
			}
			s.mustRelease("pod")
		}
	})
}

func TestBadBackupChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, s store, size int64) {
		w := want("a", size)
		dir := s.mustHold("pod", w)
		s.write(dir+"/file", strings.Repeat("kept", 1000))
		s.mustRelease("pod")
		var file bytes.Buffer
		if err := s.Backup(t.Context(), w.ID, &file, false); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{
			"cut off": file.Bytes()[:file.Len()/2], "empty": nil, "text": []byte("hello, this is no archive at all"),
			"window of 256 MiB": {0x28, 0xb5, 0x2f, 0xfd, 0, (28 - 10) << 3, 5<<3 | 1, 0, 0, 'h', 'e', 'l', 'l', 'o'},
		} {
			for _, id := range []ID{w.ID, {"default", "new"}} {
				if err := s.Restore(t.Context(), id, bytes.NewReader(text), 0, true); err == nil {
					t.Errorf("%s: no error", name)
				}
			}
		}
		if err := s.Restore(t.Context(), ID{"..", "x"}, &file, 0, false); err == nil {
			t.Error("a name outside of the store")
		}
		s.mustHold("pod", w)
		if got := s.read(dir + "/file"); !strings.HasPrefix(got, "kept") {
			t.Errorf("%q", got)
		}
		if list, err := s.List(); err != nil || len(list) != 1 {
			t.Errorf("%+v, %v", list, err)
		}
		if left, _ := filepath.Glob(filepath.Join(s.dir, newDir, "*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// slow blocks the first write until it is released.
type slow struct {
	started, goOn chan struct{}
	once          sync.Once
}

func (s *slow) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.started) })
	<-s.goOn
	return len(p), nil
}

func TestPodWaitsForTheEndOfABackup(t *testing.T) {
	s := newStore(t)
	w := want("a", 0)
	s.mustHold("pod", w)
	s.mustRelease("pod")
	out := &slow{started: make(chan struct{}), goOn: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.Backup(t.Context(), w.ID, out, false) }()
	<-out.started
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := s.Hold(ctx, "pod", w)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "backed up") {
		t.Errorf("%v", err)
	}
	close(out.goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.mustHold("pod", w)
}

func TestNameInTwoNamespacesNeedsItsNamespace(t *testing.T) {
	s := newStore(t)
	for _, namespace := range []string{"a", "b"} {
		s.mustHold("pod-"+namespace, Want{ID: ID{namespace, "data"}})
	}
	if _, err := s.Find("data"); err == nil || !strings.Contains(err.Error(), "a/data and b/data") {
		t.Errorf("%v", err)
	}
	if v, err := s.Find("b/data"); err != nil || v.Namespace != "b" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := s.Find("c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}
