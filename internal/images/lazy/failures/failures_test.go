// SPDX-License-Identifier: Apache-2.0

package failures

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// A reader gets the failures that are still kept, and then each later one.
func TestReadersGetEarlierAndLaterFailures(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log Log
	served := make(chan error, 1)
	go func() { served <- log.Serve(ctx, listener) }()
	for i := range kept + 2 {
		log.Add(Failure{Image: fmt.Sprint(i)})
	}
	got, ended := make(chan Failure), make(chan error, 1)
	go func() { ended <- Watch(t.Context(), socket, func(f Failure) { got <- f }) }()
	for i := range kept {
		if f := <-got; f.Image != fmt.Sprint(i+2) {
			t.Fatalf("failure %d is %+v", i, f)
		}
	}
	log.Add(Failure{Image: "later"})
	if f := <-got; f.Image != "later" {
		t.Errorf("got %+v", f)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the end of the snapshotter is not told")
	}
}

func TestATextNamesFilesImageAndRegistry(t *testing.T) {
	f := Failure{Image: "r.example/a:1", Registry: "r.example", Layer: "sha256:5", Offset: 7, Cause: "gone"}
	for files, want := range map[string]string{
		"":      "parts of image r.example/a:1 cannot be fetched from registry r.example (layer sha256:5 at 7): gone",
		"/a,/b": "/a, /b of image ", "/a,/b,/c,/d": "/a, /b, /c and 1 more files of image ",
	} {
		f.Files = nil
		if files != "" {
			f.Files = strings.Split(files, ",")
		}
		if got := f.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s", files, got)
		}
	}
}
