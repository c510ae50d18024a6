// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/wire"
)

// The pods that use an unreadable layer are reported, and the node as one that lacks the image; not those that were
// started later, have another layer, or all of their image.
func TestPodsWhoseFilesCannotBeHadAreReported(t *testing.T) {
	const ref = "registry.example/model:v1"
	layer := digest.FromString("a layer").String()
	rt := critest.New(t)
	rt.Images.Add(ref)
	rt.Images.SetLayers(layer)
	rt.Start()
	for _, id := range []string{"reads", "full", "other", "later"} {
		rt.Pod(id, id, "/netns", "10.0.0.1")
	}
	rt.Lazy("reads", ref)
	rt.Lazy("other", "registry.example/other:v1") // which is not there
	rt.Lazy("later", ref)
	for _, id := range []string{"reads", "full", "other"} {
		rt.Container(id, "c-"+id, "app")
	}
	f := failures.Failure{Image: ref, Layer: layer, Registry: "registry.example", Files: []string{"/model"}, Cause: "gone"}
	time.Sleep(time.Millisecond) // the clock of the runtime's times is another one
	f.At = monotime.Now()
	time.Sleep(time.Millisecond)
	rt.Container("later", "c-later", "app")

	sent := make(chan wire.Message, 100)
	d := &daemon{log: slog.New(slog.DiscardHandler), ctx: t.Context()}
	d.cfg.LazySocket = t.TempDir() + "/lazy.sock"
	var err error
	if d.images, err = d.newImages(rt.Path, func(m wire.Message) { sent <- m }); err != nil {
		t.Fatal(err)
	}
	defer d.images.store.Close()
	expect := func(what string, is func(wire.Message) bool) {
		t.Helper()
		for {
			select {
			case m := <-sent:
				if u, ok := m.(*wire.Unreadable); ok && u.UID != "uid-reads" {
					t.Errorf("reported as well: %+v", u)
				}
				if is(m) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("not reported: %s", what)
			}
		}
	}
	state := func(s wire.ImageState) func(wire.Message) bool {
		return func(m wire.Message) bool {
			r, ok := m.(*wire.ImageReports)
			return ok && r.Images[0].State == s && (s != wire.ImageFailed || r.Images[0].Reason == cri.ReasonUnreadable)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); d.images.keeper.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	d.images.keeper.Want([]wire.WantedImage{{Ref: ref, Policy: wire.ImageIfNotPresent, Lazy: true}})
	expect("the image is there", state(wire.ImagePresent))

	var log failures.Log
	log.Add(f) // before the daemon listens
	listener, err := net.Listen("unix", failures.Socket(d.cfg.LazySocket))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = log.Serve(ctx, listener) }()
	watched := make(chan struct{})
	go func() { defer close(watched); d.watchUnreadable(ctx) }()
	defer func() { cancel(); <-watched }()
	expect("the image cannot be fetched", state(wire.ImageFailed))
	expect("the pod", func(m wire.Message) bool {
		u, ok := m.(*wire.Unreadable)
		return ok && u.UID == "uid-reads" && strings.HasPrefix(u.Cause, "/model of image "+ref)
	})
}
