// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
)

func TestLargeImageHasTheShapeOfTheReport(t *testing.T) {
	steps := recipe(large)
	if len(steps) < 40 || len(steps) > 60 {
		t.Errorf("%d layers, want 40 to 60", len(steps))
	}
	seen := map[string]bool{}
	for i, s := range slices.Concat(steps, []step{{Files: 1}}) {
		if kinds := min(len(s.Wheels), 1) + min(len(s.Packages), 1) + min(s.Files, 1); kinds != 1 {
			t.Errorf("step %d is of %d kinds: %+v", i+1, kinds, s)
		}
		for _, w := range s.Wheels {
			if seen[w] || !strings.Contains(w, "==") {
				t.Errorf("step %d: %s is there twice, or has no version", i+1, w)
			}
			seen[w] = true
		}
	}
}

// wheel writes a wheel with files, by name, whose mode is that of a program if the name ends with .so.
func wheel(t *testing.T, names ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a_b-1.0-py3-none-any.whl")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	for _, name := range names {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(0o644)
		if strings.HasSuffix(name, ".so") {
			h.SetMode(0o755)
		}
		member, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(member, "content of "+name)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestWheelsBecomeALayer(t *testing.T) {
	var layer, again bytes.Buffer
	file := wheel(t, "x/sub/b.py", "x/a.so", "x-1.0.data/scripts/run", "x/a.py")
	for _, out := range []*bytes.Buffer{&layer, &again} {
		if err := writeWheels(out, []string{file}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(layer.Bytes(), again.Bytes()) {
		t.Error("the same wheel gives two layers")
	}
	var got []string
	for in := tar.NewReader(&layer); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %o %s", h.Name, h.Mode, content))
	}
	want := []string{"usr/ 755 ", "usr/lib/ 755 ", "usr/lib/python3/ 755 ", "usr/lib/python3/dist-packages/ 755 ",
		"usr/lib/python3/dist-packages/x/ 755 ", "usr/lib/python3/dist-packages/x/a.py 644 content of x/a.py",
		"usr/lib/python3/dist-packages/x/a.so 755 content of x/a.so", "usr/lib/python3/dist-packages/x/sub/ 755 ",
		"usr/lib/python3/dist-packages/x/sub/b.py 644 content of x/sub/b.py"}
	if !slices.Equal(got, want) {
		t.Errorf("the layer has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := writeWheels(io.Discard, []string{wheel(t, "../../../../etc/passwd")}); err == nil {
		t.Error("a wheel may write outside of the folder of packages")
	}
}

func TestWheelsAreDownloadedOnce(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no Python
	file := wheel(t, "x.py")
	got, err := downloadWheels(t.Context(), filepath.Dir(file), []string{"a-b==1.0"})
	if err != nil || len(got) != 1 || got[0] != file {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := downloadWheels(t.Context(), filepath.Dir(file), []string{"a-b==1.0", "c==2"}); err == nil ||
		!strings.Contains(err.Error(), "download c==2 with pip") {
		t.Errorf("a wheel that is missing, without Python: %v", err)
	}
}

func TestRatesAreThoseOfTC(t *testing.T) {
	for text, want := range map[string]uint64{
		"1gbit": 1e9, "200mbit": 200e6, "2.5Gbit": 2.5e9, "5000kbit": 5e6, "1kbit": 0, "1mb": 0, "gbit": 0, "-1gbit": 0,
		"NaNgbit": 0, "1tbit": 0, "": 0,
	} {
		got, err := parseRate("--link", text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
}

// The limit is on what the host sends.
func TestLinkIsLimited(t *testing.T) {
	need.Root(t)
	n := netlabtest.New(t, netlab.Config{})
	const rate, bytes = 100e6, 4 << 20
	if err := limit(n.Client(), rate); err != nil {
		t.Fatal(err)
	}
	l, err := n.Node.Listen(t.Context(), "tcp4", ":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c) // too few bytes fail the test
		received <- n
	}()
	c, err := n.Client().Dialer().DialContext(t.Context(), "tcp4", fmt.Sprintf("%s:7000", n.Node.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begin := time.Now()
	if _, err := c.Write(make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-received; got != bytes {
		t.Fatalf("%d bytes arrived, want %d", got, bytes)
	}
	// The bucket passes at once, all else at the rate.
	least := time.Duration(float64(bytes-(256<<10)) * 8 / rate * float64(time.Second))
	if took := time.Since(begin); took < least {
		t.Errorf("%d bytes took %v: at %.0f bit/s they take at least %v", bytes, took, rate, least)
	}
}

// pullsOf returns two rounds of pulls in which each way of storing takes some seconds.
func pullsOf() Samples {
	s := Samples{Cores: 2, Analysed: 10, Advice: []Advice{{"zstd", 6}, {"hash", 0}, {"split", 1}}}
	for i, j := range jobs(true, true, true) {
		for round := range 3 {
			p := Pull{Round: round + 1, Image: j.image, Settings: j.settings, Other: j.other, Containerd: "2.4.2",
				Pull: 20 - float64(i)/2 + float64(round), Fetch: 1, Unpack: 5, CPU: 10, RegistryCPU: 1}
			s.Pulls = append(s.Pulls, p)
		}
	}
	s.Wakes = []Wake{
		{Kind: Stock, FirstByte: 9}, {Kind: Stock, FirstByte: 30, Error: "timed out"},
		{Kind: Prefetch, FirstByte: 0.3, Prefetched: 12}, {Kind: Warm, FirstByte: 0.2}, {Kind: Lazy, FirstByte: 1.5},
		{Kind: NoPeers, FirstByte: 8, OriginRatio: 1.02}, {Kind: Peers, FirstByte: 7, OriginRatio: 0.001, FromPeers: 5e8},
	}
	return s
}

func TestSummaryFollowsFromTheSamples(t *testing.T) {
	raw := pullsOf()
	r := newReport(raw)
	for key, want := range map[string]float64{
		"pull_s_gzip": 21, "pull_s_gzip_tuned": 20.5, "pull_s_zstd_split_tuned": 13, "fetch_s_zstd": 1,
		"unpack_s_split_tuned": 5, "pull_s_gzip_overlayfs": 20, "speedup_best_overlayfs": 21 / 12.5,
		"speedup_best_tuned": 21 / 13.0, "first_wake_s_stock": 9, "first_wake_s_prefetch": 0.3, "first_wake_s_lazy": 1.5,
		"first_wake_s_no_peers": 8, "first_wake_s_peers": 7, "warm_image_wake_s": 0.2, "lost": 1,
	} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for _, v := range r.Summary {
		if math.IsNaN(v.Value) {
			t.Errorf("%s is not a number", v.Key)
		}
	}
	text := string(r.Markdown())
	// The image was analysed when its pull took 10 s, of which 6 were expected; the median of the samples is 21 s.
	for _, want := range []string{"| zstd   | defaults |    12.60 |", "0.52 of 2", "1.62 ×"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if err := r.Write(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestReportsOfPartsSayWhatWasNotMeasured(t *testing.T) {
	for _, raw := range []Samples{{Wakes: pullsOf().Wakes}, {Pulls: pullsOf().Pulls, Cores: 2}, {}} {
		r := newReport(raw)
		if err := r.Write(t.TempDir()); err != nil {
			t.Error(err)
		}
		if text := string(r.Markdown()); !strings.Contains(text, "not measured") || strings.Contains(text, "NaN") {
			t.Errorf("the report of %d pulls and %d wakes:\n%s", len(raw.Pulls), len(raw.Wakes), text)
		}
	}
}

// TestPullsRunAndLeaveNothing measures pulls of an image of some files. It checks that the experiment works and cleans
// up, not how long things take.
func TestPullsRunAndLeaveNothing(t *testing.T) {
	reports := runs(t, Params{
		Rounds: 1, Parts: []string{PartPulls}, Images: []string{original, best}, Piece: 1 << 20, Size: "test",
		steps: application(3),
	})
	raw := reports[0].Raw.(Samples)
	if len(raw.Images) != 2 || raw.Images[0].Layers != 3 || raw.Images[1].Layers != 1 {
		t.Errorf("images: %+v", raw.Images)
	}
	for _, key := range []string{"pull_s_gzip", "pull_s_gzip_tuned", "pull_s_zstd_split_tuned", "fetch_s_gzip"} {
		if v := reports[0].Summary.Get(key); !(v > 0) {
			t.Errorf("%s is %v", key, v)
		}
	}
}

// TestErofsPullsAreMeasured is the same with a containerd that can use the snapshotter erofs.
func TestErofsPullsAreMeasured(t *testing.T) {
	program := need.ErofsContainerd(t)
	reports := runs(t, Params{
		Rounds: 1, Parts: []string{PartPulls}, Images: []string{original, best}, Piece: 1 << 20, Size: "test",
		steps: application(3), Containerd: program,
	})
	for _, key := range []string{"pull_s_gzip", "pull_s_gzip_tuned", "pull_s_gzip_overlayfs", "pull_s_zstd_split_tuned",
		"pull_s_zstd_split_overlayfs", "speedup_best_tuned", "speedup_best_overlayfs"} {
		if v := reports[0].Summary.Get(key); !(v > 0) {
			t.Errorf("%s is %v", key, v)
		}
	}
}

// TestWholeExperimentWithTheSmallImage downloads packages and takes minutes.
func TestWholeExperimentWithTheSmallImage(t *testing.T) {
	need.Chosen(t, "WANGELL_TEST_PULL", "1, for 40 pulls of an image of 150 MB from downloaded packages: some minutes")
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	snapshotter, err := e2e.Program(t.TempDir(), "wangell-snapshotter")
	if err != nil {
		t.Fatal(err)
	}
	reports := runs(t, Params{Wangell: wangell, Snapshotter: snapshotter, Quick: true})
	for _, v := range reports[0].Summary {
		if math.IsNaN(v.Value) && !strings.HasSuffix(v.Key, "_other") || v.Key == "lost" && v.Value != 0 {
			t.Errorf("%s is %v", v.Key, v.Value)
		}
	}
	for _, w := range reports[0].Raw.(Samples).Wakes {
		switch {
		case w.Kind == NoPeers && (w.OriginRatio < 0.95 || w.FromPeers > 0):
			t.Errorf("a wake without peers got its image from other nodes: %+v", w)
		case w.Kind == Peers && (w.OriginRatio > 0.1 || w.FromPeers < 1e6):
			t.Errorf("a wake with peers got its image from the registry: %+v", w)
		}
	}
}

// runs runs the experiment with what a test sets, and the defaults of the flags for all else. It fails the test if
// anything is left, or if a pull is not explained.
func runs(t *testing.T, set Params) []*report.Report {
	t.Helper()
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "pl") // short, because of the sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var p Params
	p.Flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	set.Link, set.Unpackers, set.Downloads, set.Dir = p.Link, p.Unpackers, p.Downloads, dir
	if set.PeersLink == "" {
		set.PeersLink = p.PeersLink
	}
	reports, err := set.Run(ctx, lab.Output{Progress: func(int, int) {}, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reports {
		if err := r.Write(t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range reports {
		if explained, ok := r.Raw.([]Explained); ok {
			checkExplained(t, explained)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts are left: %v", err)
	}
	return reports
}

// checkExplained fails the test if the phases of pulls do not add up.
func checkExplained(t *testing.T, pulls []Explained) {
	t.Helper()
	for _, e := range pulls {
		phases, pull := e.Report.Phases, e.Report.Pull
		if phases[pullstat.Fetch] <= 0 || phases[pullstat.Apply] <= 0 {
			t.Errorf("%s, %s: no time of a phase: %v", e.Image, e.Settings, phases)
		}
		// Pulls of a few files take less than a second, in which a wait for a core is much: package live checks that.
		if pull > 3 && phases[pullstat.Other] > 0.05*pull {
			t.Errorf("%s, %s: %.2f s of %.2f s are not explained", e.Image, e.Settings, phases[pullstat.Other], pull)
		}
	}
}
