// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/need"
)

// report holds the arguments of one call of onChange.
type report struct {
	set Set
	err error
}

// watching is a running Watch.
type watching struct {
	t       *testing.T
	reports chan report
}

// patience is how long a test waits for a report. It is long because the machine may be busy.
const patience = 60 * time.Second

func startWatch(t *testing.T, r *Reader) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, reports: make(chan report, 100)}
	done := make(chan error, 1)
	go func() { done <- r.Watch(ctx, func(s Set, err error) { w.reports <- report{s, err} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return w
}

// want waits for a report with these services.
func (w *watching) want(names_ string) Set {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case got := <-w.reports:
			if got.err == nil && names(got.set) == names_ {
				return got.set
			}
			w.t.Logf("reported before: %s, %v", names(got.set), got.err)
		case <-deadline:
			w.t.Fatalf("%q did not come", names_)
		}
	}
}

// wantOnly is want without other reports before.
func (w *watching) wantOnly(names_ string) Set {
	w.t.Helper()
	select {
	case got := <-w.reports:
		if got.err != nil || names(got.set) != names_ {
			w.t.Fatalf("got %q, %v; want %q", names(got.set), got.err, names_)
		}
		return got.set
	case <-time.After(patience):
		w.t.Fatalf("%q did not come", names_)
	}
	return nil
}

// wantError waits for an error and returns the set reported with it.
func (w *watching) wantError(text string) Set {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case got := <-w.reports:
			if got.err != nil && strings.Contains(got.err.Error(), text) {
				return got.set
			}
			w.t.Logf("reported before: %s, %v", names(got.set), got.err)
		case <-deadline:
			w.t.Fatalf("no error with %q", text)
		}
	}
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace writes a file and renames it into place, as editors do.
func replace(t *testing.T, file, text string) {
	t.Helper()
	put(t, file+"~", text)
	rename(t, file+"~", file)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// link creates or replaces a symlink.
func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name+".new"); err != nil {
		t.Fatal(err)
	}
	rename(t, name+".new", name)
}

func TestWatchSeesAFileEditedAndReplaced(t *testing.T) {
	dir := write(t, map[string]string{"f.yaml": doc("a", hello)})
	file := filepath.Join(dir, "f.yaml")
	w := startWatch(t, NewReader([]string{file}, nil))
	w.wantOnly("default/a")
	put(t, file, doc("b", hello)) // in place
	w.want("default/b")
	replace(t, file, doc("c", hello))
	w.want("default/c")
	replace(t, file, doc("d", hello)) // the new file is watched, too
	w.want("default/d")
	put(t, filepath.Join(dir, "other.yaml"), "{") // not a source
	rename(t, file, file+".bak")                  // like vi: the old file becomes the backup
	if kept := w.wantError("f.yaml: no such file"); names(kept) != "default/d" {
		t.Errorf("kept %s", names(kept))
	}
	put(t, file, doc("d", hello))
	w.want("default/d") // reported again, because the error is gone
}

func TestWatchKeepsTheLastValidSet(t *testing.T) {
	dir := write(t, map[string]string{"f.yaml": doc("a", hello)})
	file := filepath.Join(dir, "f.yaml")
	r := NewReader([]string{file}, nil)
	if _, err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := startWatch(t, r) // what Load returned is not reported again
	replace(t, file, doc("a", "image: a/b, prot: 80"))
	if kept := w.wantError("did you mean port?"); names(kept) != "default/a" {
		t.Errorf("kept %s", names(kept))
	}
	put(t, file, "")
	if kept := w.wantError("contains no document"); names(kept) != "default/a" {
		t.Errorf("kept %s", names(kept))
	}
	replace(t, file, doc("a", hello+", idleTimeout: 7"))
	if set := w.want("default/a"); set[0].Spec.IdleTimeout != 7 {
		t.Errorf("got %+v", set[0].Spec)
	}
}

func TestWatchSeesFilesComeAndGoInAFolder(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": doc("a", hello)})
	inside := filepath.Join(dir, "services")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	w := startWatch(t, NewReader([]string{inside}, nil))
	w.wantOnly("")
	replace(t, filepath.Join(inside, "a.yaml"), doc("a", hello))
	w.want("default/a")
	replace(
		t,
		filepath.Join(inside, "b.json"),
		jsonDoc("b"),
	)
	w.want("default/a default/b")
	if err := os.Remove(filepath.Join(inside, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	w.want("default/b")
	// The folder disappears, and another one takes its name.
	rename(t, inside, inside+".old")
	w.wantError("services: no such file or directory")
	next := write(t, map[string]string{"c.yaml": doc("c", hello)})
	rename(t, next, inside)
	w.want("default/c")
	replace(t, filepath.Join(inside, "c.yaml"), doc("d", hello))
	w.want("default/d")
	if err := os.RemoveAll(inside); err != nil {
		t.Fatal(err)
	}
	w.wantError("services: no such file or directory")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(inside, "e.yaml"), doc("e", hello))
	w.want("default/e")
}

// Kubernetes mounts a ConfigMap like this: the file is a link through ..data, which is a link to a folder that is
// replaced as a whole.
func TestWatchFollowsSymlinksAsConfigMapsUseThem(t *testing.T) {
	for _, asFolder := range []bool{false, true} {
		dir := t.TempDir()
		version := func(name, text string) {
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, name, "f.yaml"), text)
			link(t, name, filepath.Join(dir, "..data"))
		}
		version("..1", doc("a", hello))
		link(t, "..data/f.yaml", filepath.Join(dir, "f.yaml"))
		source := filepath.Join(dir, "f.yaml")
		if asFolder {
			source = dir
		}
		w := startWatch(t, NewReader([]string{source}, nil))
		w.wantOnly("default/a")
		version("..2", doc("b", hello))
		w.wantOnly("default/b")
		if err := os.RemoveAll(filepath.Join(dir, "..1")); err != nil {
			t.Fatal(err)
		}
		version("..3", doc("c", hello))
		w.wantOnly("default/c")
		put(t, filepath.Join(dir, "..3", "f.yaml"), doc("d", hello)) // the target of the links
		w.want("default/d")
	}
}

// The test swaps a link in the middle of the path: current -> release-1.
func TestWatchFollowsALinkInThePath(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"1", "2"} {
		release := filepath.Join(dir, "release-"+v, "services")
		if err := os.MkdirAll(release, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(release, "f.yaml"), doc("v"+v, hello))
	}
	link(t, "release-1", filepath.Join(dir, "current"))
	w := startWatch(t, NewReader([]string{filepath.Join(dir, "current", "services")}, nil))
	w.wantOnly("default/v1")
	link(t, "release-2", filepath.Join(dir, "current"))
	w.wantOnly("default/v2")
	put(t, filepath.Join(dir, "release-2", "services", "g.yaml"), doc("more", hello))
	w.want("default/more default/v2")
}

// A file that its writer has not closed is not read, although its text so far is valid.
func TestWatchWaitsForAFileThatIsBeingWritten(t *testing.T) {
	for attempt := 0; !watchesHalfAFile(t); attempt++ {
		if attempt == 20 {
			t.Fatalf("the other half was never written within %s", maxWriting*settleTime)
		}
	}
}

// watchesHalfAFile returns false if it wrote the second half of the file so late that Watch rightly read the first.
func watchesHalfAFile(t *testing.T) bool {
	t.Helper()
	dir := write(t, map[string]string{"f.yaml": doc("a", hello) + "---\n" + doc("b", hello)})
	file := filepath.Join(dir, "f.yaml")
	if !leases(t, file) {
		need.Unmet(t, "needs a file system with leases: %s", dir)
	}
	w := startWatch(t, NewReader([]string{file}, nil))
	w.wantOnly("default/a default/b")
	begin := time.Now()
	writer, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString(doc("a", hello)); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-w.reports:
		if time.Since(begin) >= maxWriting*settleTime {
			writer.Close()
			return false
		}
		t.Errorf("half of the file was read: %s, %v", names(got.set), got.err)
	case <-time.After(5 * settleTime): // several times as long as it takes to read a change
	}
	if _, err := writer.WriteString("---\n" + doc("c", hello)); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	w.want("default/a default/c")
	return true
}

func leases(t *testing.T, file string) bool {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return openForWriting(file)
}

// The services of standard input stay when the files change.
func TestWatchKeepsTheTextOfStdin(t *testing.T) {
	dir := write(t, map[string]string{"f.yaml": doc("a", hello)})
	r := NewReader([]string{"-", dir}, strings.NewReader(doc("in", hello)))
	if _, err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := startWatch(t, r)
	replace(t, filepath.Join(dir, "f.yaml"), doc("b", hello))
	w.wantOnly("default/b default/in")
}

func TestWatchClosesAllFiles(t *testing.T) {
	dir := write(t, map[string]string{"f.yaml": doc("a", hello)})
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	watchOnce := func() {
		ctx, cancel := context.WithCancel(t.Context())
		if err := NewReader([]string{dir}, nil).Watch(ctx, func(Set, error) { cancel() }); err != nil {
			t.Fatal(err)
		}
	}
	watchOnce() // the first one makes the Go runtime open files of its own
	before := open()
	for range 20 {
		watchOnce()
	}
	// fsnotify closes its files on another goroutine.
	for end := time.Now().Add(patience); open() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d open files, %d before", open(), before)
		}
	}
}
