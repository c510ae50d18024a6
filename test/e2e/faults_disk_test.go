// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// The message says so, nothing of the pull keeps the disk full, and the next request works once there is room.
func TestPullReportsAFullDiskAndRecovers(t *testing.T) {
	l := newLab(t, 2)
	l.state = filepath.Join(l.dir, "state")
	l.makeDir(t, "state", 0)
	if err := unix.Mount("tmpfs", l.state, "tmpfs", 0, "size=40m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(l.state, 0); err != nil {
			t.Errorf("unmount %s: %v", l.state, err)
			_ = unix.Unmount(l.state, unix.MNT_DETACH)
		}
	})
	code, err := serverFile()
	if err != nil {
		t.Fatal(err)
	}
	ballast := make([]byte, 48<<20)
	rand.NewChaCha8([32]byte{}).Read(ballast) // incompressible
	large, err := image.Build(image.Spec{
		Files:      map[string]image.File{"/server": {Data: code, Mode: 0o755}, "/ballast": {Data: ballast}},
		Entrypoint: []string{"/server"},
	})
	if err != nil {
		t.Fatal(err)
	}
	host := l.serveRegistry(t, l.Clients[1])
	for _, tag := range []string{"large", "small"} {
		img := large
		if tag == "small" {
			img = serverImage
		}
		push(t, l.Clients[1], fmt.Sprintf("%s/%s:v1", host, tag), img)
	}
	u := l.startWith(t, manifest(service{name: "large", image: host + "/large:v1", more: "wakeTimeout: 120"},
		service{name: "small", image: host + "/small:v1"}),
		"-f", "-", "--insecure-registry", host)
	address := l.address(t, "large")
	refused(t, l.Client(), address)
	const want = "no space left on device"
	e := u.await(t, 0, "the failure", reports(status.SeverityError, want))
	if s := l.until(t, "large", "failed", isState("Failed")).Service.Status; !strings.Contains(s.Message, want) ||
		!strings.Contains(s.Message, "free some") {
		t.Errorf("status: %+v, event: %q", s, e.Text)
	}
	e2e.MustAsk(t, l.Client(), l.address(t, "small"))
	if err := unix.Mount("", l.state, "", unix.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	// The service backs off; a refused client tries again.
	eventually(t, "an answer, once there is room", func() bool {
		_, err := e2e.Ask(l.Client(), address)
		if err != nil {
			time.Sleep(200 * time.Millisecond)
		}
		return err == nil
	})
}
