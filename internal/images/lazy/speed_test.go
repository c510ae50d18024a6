// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/images/tarserve"
	"wangell.loutres.me/test/testutil/need"
)

// How long a pull and a program take, lazy beside containerd's overlayfs, both with an empty containerd of their own,
// from a registry behind a link of 200 Mbit/s. WANGELL_TEST_LAZY names two tarballs with one image that has python3:
// gzip, as `wangell-lab pull` leaves it in its cache, and what `wangell image convert --compression estargz` makes of
// it. Reading every file may take 1.3 times as long.
func TestPythonStartsTenTimesFaster(t *testing.T) {
	files := strings.Split(need.Chosen(t, "WANGELL_TEST_LAZY", "GZIP.tar,ESTARGZ.tar"), ",")
	if len(files) != 2 {
		t.Fatalf("WANGELL_TEST_LAZY names %d files: want GZIP.tar,ESTARGZ.tar", len(files))
	}
	limitLoopback(t, 200e6)
	for _, c := range []struct {
		name string
		run  func(t *testing.T, dir string)
		bar  float64
	}{
		{"python", program("/usr/bin/python3", "-c", "print(__name__)"), 10},
		{"every file", readAll, 1 / 1.3},
	} {
		t.Run(c.name, func(t *testing.T) {
			stock := measure(t, files[0], "overlayfs", c.run)
			lazy := measure(t, files[1], pluginName, c.run)
			ratio := stock.Seconds() / lazy.Seconds()
			t.Logf("stock %.2f s, lazy %.2f s: %.2f times faster", stock.Seconds(), lazy.Seconds(), ratio)
			if ratio < c.bar {
				t.Errorf("want at least %.2f times", c.bar)
			}
		})
	}
}

// measure returns the time from the start of a pull to the end of run.
func measure(t *testing.T, file, snapshotter string, run func(t *testing.T, dir string)) time.Duration {
	server, err := tarserve.Start(file)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var took time.Duration
	t.Run(snapshotter, func(t *testing.T) {
		s := newSetup(t)
		begin := time.Now()
		img := s.pull(server.Ref(), snapshotter)
		pulled := time.Since(begin)
		dir, remove := s.mount(img, snapshotter)
		defer remove()
		run(t, dir)
		took = time.Since(begin)
		t.Logf("pull %.2f s, then %.2f s; %+v", pulled.Seconds(), (took - pulled).Seconds(), s.server.Stats())
	})
	return took
}

// program returns what runs a program in a root. The program chroot changes the root, rather than this process between
// fork and exec: while a file is awaited there, Go cannot collect garbage, and the server in this process may need
// that.
func program(args ...string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		cmd := exec.Command("chroot", append([]string{dir}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("%v: %s, %v", args, out, err)
		}
	}
}

func readAll(t *testing.T, dir string) {
	var files, bytes int64
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := io.Copy(io.Discard, f)
		files, bytes = files+1, bytes+n
		return err
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d files, %d bytes", files, bytes)
}

// limitLoopback limits this test's own loopback device, in bits per second.
func limitLoopback(t *testing.T, rate uint64) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	qdisc := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT},
		Rate: rate / 8, Buffer: netlink.Xmittime(rate/8, 1<<18), Limit: 1 << 20,
	}
	if err := netlink.QdiscAdd(qdisc); err != nil {
		need.Unmet(t, "cannot limit the loopback device: %v", err)
	}
	t.Cleanup(func() {
		if err := netlink.QdiscDel(qdisc); err != nil {
			t.Error(err)
		}
	})
}
