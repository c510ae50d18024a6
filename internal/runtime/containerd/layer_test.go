// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

func TestLayerHasWhatAPodHasWritten(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	p, err := r.Start(t.Context(), runtimetest.Service("layer"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	before, err := r.Layer(t.Context(), p.ID)
	if err != nil || before.Folders == nil {
		t.Fatalf("%+v, %v", before, err)
	}
	writeIntoLayer(t, r, p, before)
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Layer(t.Context(), p.ID); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
}

func TestFoldersOfALayerAreAddedUpToTheThirdLevel(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 8192)
	if err := errors.Join(
		os.MkdirAll(dir+"/var/lib/db/table/deep", 0o755), os.Mkdir(dir+"/empty", 0o755),
		os.WriteFile(dir+"/var/lib/db/table/deep/file", content, 0o600),
		os.Link(dir+"/var/lib/db/table/deep/file", dir+"/var/lib/db/same"),
		os.WriteFile(dir+"/var/log", content, 0o600), os.WriteFile(dir+"/top", content, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	l, err := walkLayer(t.Context(), dir)
	if err != nil || l.Bytes != 3*8192 || len(l.Folders) != 3 || l.Folders["/var"] != 2*8192 ||
		l.Folders["/var/lib"] != 8192 || l.Folders["/var/lib/db"] != 8192 {
		t.Errorf("%+v, %v", l, err)
	}
}

// written is how many bytes writeIntoLayer writes.
const written = 100 << 10

// writeIntoLayer has a pod write into its layer, which was as before, and checks that the layer grows by that.
func writeIntoLayer(t *testing.T, r *Runtime, p runtime.Pod, before runtime.Layer) {
	t.Helper()
	resp, err := http.Get("http://" + p.Addr.String() + ":8080/write?f=/file&t=" + strings.Repeat("x", written))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	after, err := r.Layer(t.Context(), p.ID)
	if grown := after.Bytes - before.Bytes; err != nil || grown < written || grown > 2*written {
		t.Errorf("%+v after %+v, %v", after, before, err)
	}
}
