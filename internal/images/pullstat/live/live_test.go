// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/test/testutil/containerdtest"
)

// patience bounds the waits for things that happen soon, unless the machine is very busy.
const patience = time.Minute

// The tests run in their own network and mount namespaces, with a real containerd.
func TestMain(m *testing.M) { containerdtest.Main(m) }

// run calls Run with a folder of the test, and fails it if anything is left afterwards.
func run(ctx context.Context, t *testing.T, o Options) (pullstat.Recording, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "an") // short, because of the socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	o.Dir = dir
	if o.Program == "" {
		o.Program = "containerd"
	}
	rec, runErr := Run(ctx, o)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 0 {
		t.Errorf("files are left: %v, %v", files, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		if line, err := os.ReadFile(c); err == nil && strings.Contains(string(line), dir) {
			t.Errorf("a process is left: %q", line)
		}
	}
	return rec, runErr
}

// requests remembers when a registry was asked for each blob for the first time.
type requests struct {
	mu sync.Mutex
	at map[string]time.Time // by digest
}

func (r *requests) before(q *http.Request) {
	if _, digest, ok := strings.Cut(q.URL.Path, "/blobs/"); ok && q.Method == http.MethodGet {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, ok := r.at[digest]; !ok {
			r.at[digest] = time.Now()
		}
	}
}

func TestPhasesOfARealPullAddUpToItsLength(t *testing.T) {
	asked := &requests{at: map[string]time.Time{}}
	img, sizes := testImage(t)
	ref := push(t, serveRegistry(t, asked.before), img)
	for _, via := range []string{ViaContainerd, ViaCRI} {
		t.Run(via, func(t *testing.T) {
			clear(asked.at)
			stages := map[string]bool{}
			rec, err := run(t.Context(), t, Options{Image: ref, Via: via, Progress: func(stage string, done, total int64) {
				stages[stage] = true
				if done > total && total > 0 {
					t.Errorf("%s: %d of %d bytes", stage, done, total)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			report, err := pullstat.Analyse(rec)
			if err != nil {
				t.Fatal(err)
			}
			checkSums(t, report)
			checkLayers(t, report, img, sizes)
			for _, l := range report.Layers {
				began := report.Layers[l.Number-1].Spans[0].End // layers wait before they are downloaded
				request := asked.at[l.Digest].Sub(rec.Begin).Seconds()
				if request < began-0.005 || request > began+l.Phases[pullstat.Fetch] {
					t.Errorf("layer %d: asked for after %.3f s, its download is said to run from %.3f s for %.3f s", l.Number,
						request, began, l.Phases[pullstat.Fetch])
				}
			}
			if !stages[StageStart] || !stages[StageSecond] {
				t.Errorf("stages of progress: %v", stages)
			}
			checkAdvice(t, report)
		})
	}
}

// checkSums compares the sum of what is explained with the length of the pull by the clock of this process.
func checkSums(t *testing.T, report pullstat.Report) {
	t.Helper()
	explained := 0.0
	for p, s := range report.Phases {
		if p != pullstat.Other {
			explained += s
		}
	}
	if explained < 0.95*report.Pull || explained > 1.05*report.Pull {
		t.Errorf("phases add up to %.3f s, the pull took %.3f s: %v", explained, report.Pull, report.Phases)
	}
	// What is done for layers is most of it: the phases at both ends do not hide an event that is missing.
	if ends := report.Phases[pullstat.Resolve] + report.Phases[pullstat.Finish]; ends > 0.5*report.Pull {
		t.Errorf("resolve and finish take %.3f s of %.3f s", ends, report.Pull)
	}
}

// checkLayers compares sizes and phases with the image.
func checkLayers(t *testing.T, report pullstat.Report, img v1.Image, sizes []int64) {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Layers) != len(compressions) {
		t.Fatalf("%d layers", len(report.Layers))
	}
	for i, l := range report.Layers {
		want := manifest.Layers[i]
		if l.Digest != want.Digest.String() || l.Packed != want.Size || l.Unpacked != sizes[i] ||
			l.Files != filesPerLayer || l.Compression != compressions[i] {
			t.Errorf("layer %d: %+v, want %+v, %d bytes unpacked, %s", l.Number, l, want, sizes[i], compressions[i])
		}
		for _, p := range []pullstat.Phase{pullstat.Fetch, pullstat.Hash, pullstat.Apply, pullstat.Fsync} {
			if l.Phases[p] <= 0 {
				t.Errorf("layer %d: no time of %s: %v", l.Number, p, l.Phases)
			}
		}
		if l.Spans[0].Phase != pullstat.Wait {
			t.Errorf("layer %d begins with %s", l.Number, l.Spans[0].Phase)
		}
	}
	// Not what waits for the disk, which may be busy with something else.
	computing := func(l pullstat.LayerReport) float64 {
		return l.Phases[pullstat.Decompress] + l.Phases[pullstat.Hash]
	}
	fatLayer, thin := report.Layers[fat-1], report.Layers[0]
	t.Logf("decompressing and hashing %d bytes took %.3f s, %d bytes %.3f s", fatLayer.Unpacked, computing(fatLayer),
		thin.Unpacked, computing(thin))
	if computing(fatLayer) < computing(thin) {
		t.Error("the larger layer took less")
	}
}

func checkAdvice(t *testing.T, report pullstat.Report) {
	t.Helper()
	texts := ""
	for _, a := range report.Advice {
		texts += a.String() + "\n"
	}
	want := fmt.Sprintf("layer %d holds", fat)
	if found := strings.Contains(texts, want); found != (runtime.NumCPU() > 1) {
		t.Errorf("%d cores, and advice:\n%s", runtime.NumCPU(), texts)
	}
}

func TestNothingIsLeftOfACancelledRun(t *testing.T) {
	img, _ := testImage(t)
	for _, via := range []string{ViaContainerd, ViaCRI} {
		t.Run(via+" while it downloads", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			defer close(ended)
			ref := push(t, serveRegistry(t, func(q *http.Request) {
				if strings.Contains(q.URL.Path, "/blobs/") && q.Method == http.MethodGet {
					cancel()
					select { // the download does not end by itself
					case <-q.Context().Done():
					case <-ended:
					}
				}
			}), img)
			checkCancelled(ctx, t, Options{Image: ref, Via: via})
		})
	}
	ref := push(t, serveRegistry(t, func(*http.Request) {}), img)
	for _, stage := range []string{StageStart, StageSecond} {
		t.Run("in stage "+stage, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			checkCancelled(ctx, t, Options{Image: ref, Via: ViaContainerd, Progress: func(s string, _, _ int64) {
				if s == stage {
					cancel()
				}
			}})
		})
	}
}

// checkCancelled expects Run to return soon after ctx has ended.
func checkCancelled(ctx context.Context, t *testing.T, o Options) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := run(ctx, t, o)
		done <- err
	}()
	select {
	case <-ctx.Done():
	case err := <-done:
		t.Fatal("returned before it was cancelled:", err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was cancelled", err)
		}
	case <-time.After(patience):
		t.Fatal("goes on although it was cancelled")
	}
}

func TestATarballIsPulledToo(t *testing.T) {
	data := []byte(strings.Repeat("hello ", 1e5))
	img, err := image.Build(image.Spec{Files: map[string]image.File{"/hello": {Data: data}}})
	if err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := image.WriteFile(saved, "local/hello:v1", img); err != nil {
		t.Fatal(err)
	}
	index, err := image.Index(nil, img)
	if err != nil {
		t.Fatal(err)
	}
	layout := filepath.Join(t.TempDir(), "layout.tar")
	if err := image.WriteLayout(layout, "local/hello:v1", index); err != nil {
		t.Fatal(err)
	}
	for file, via := range map[string]string{saved: ViaContainerd, layout: ViaCRI} {
		rec, err := run(t.Context(), t, Options{Image: file, Via: via})
		if err != nil {
			t.Fatal(err)
		}
		report, err := pullstat.Analyse(rec)
		if err != nil {
			t.Fatal(err)
		}
		compressed := report.Packed < 1e5
		if report.Image != file || report.Files != 1 || report.Unpacked < 6e5 || compressed != (file == layout) {
			t.Errorf("%s: %+v", file, report)
		}
	}
}

func TestCompressionIsThatOfTheBlobNotOfTheMediaType(t *testing.T) {
	l := packedLayer(t, "gzip", tarOf(t, 1, 1<<20))
	l.mediaType = types.DockerUncompressedLayer
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: l, MediaType: l.mediaType})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := run(t.Context(), t, Options{Image: push(t, serveRegistry(t, func(*http.Request) {}), img),
		Via: ViaContainerd})
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.Stages) != 1 || rec.Stages[0].Compression != "gzip" || rec.Trial == nil {
		t.Errorf("stages %+v, trial %+v", rec.Stages, rec.Trial)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	host := serveRegistry(t, func(*http.Request) {})
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Image: host + "/no/such:v1", Via: ViaContainerd}, "not found in its registry (pull 404): check the name"},
		{Options{Image: host + "/no/such:v1", Via: ViaCRI}, "not found in its registry (pull 404): check the name"},
		{Options{Image: "127.0.0.1:1/x:v1", Via: ViaContainerd}, "cannot be reached"},
		{Options{Image: "127.0.0.1:1/x:v1", Via: ViaCRI}, "cannot be reached"},
		{Options{Image: "10.9.9.9:5000/x:v1", Via: ViaCRI, Insecure: []string{"10.9.9.9:5000"}}, `"http://10.9.9.9:5000/`},
		{Options{Image: "Not A Name"}, "write [REGISTRY/]NAME[:TAG], or the path of a tarball"},
		{Options{Image: "/no/such.tar"}, "tarball /no/such.tar"},
		{Options{Image: "x", Program: "no-such-containerd"}, "no-such-containerd is not in $PATH: apt install containerd"},
		{Options{Image: "x", Program: "false"}, "exited"},
		{Options{Image: push(t, host, empty.Image), Via: ViaContainerd}, "no layers"},
	} {
		rec, err := run(t.Context(), t, c.o)
		if err == nil {
			_, err = pullstat.Analyse(rec)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
