// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

// benchLayer returns a layer with small files and a few large ones, which are packed to about a third, the
// digest of its table of contents, and the size of all files.
func benchLayer(b *testing.B, with estargz.Compressor) (layer []byte, toc digest.Digest, size int64) {
	b.Helper()
	random := rand.New(rand.NewChaCha8([32]byte{}))
	words := make([]string, 5000)
	for i := range words {
		words[i] = fmt.Sprintf("%x ", random.Uint64()>>(8*random.IntN(6)))
	}
	var archive, packed bytes.Buffer
	out := tar.NewWriter(&archive)
	for i := range 3000 {
		n := 1 + random.IntN(60_000)
		if i%375 == 0 {
			n = 8 << 20
		}
		var content bytes.Buffer
		for content.Len() < n {
			content.WriteString(words[int(random.ExpFloat64()*600)%len(words)])
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%d/%d", i%50, i), Mode: 0o644, Size: int64(n)}
		if err := out.WriteHeader(h); err != nil {
			b.Fatal(err)
		}
		if _, err := out.Write(content.Bytes()[:n]); err != nil {
			b.Fatal(err)
		}
		size += int64(n)
	}
	if err := out.Close(); err != nil {
		b.Fatal(err)
	}
	w := estargz.NewWriterWithCompressor(&packed, with)
	if err := w.AppendTar(&archive); err != nil {
		b.Fatal(err)
	}
	toc, err := w.Close()
	if err != nil {
		b.Fatal(err)
	}
	return packed.Bytes(), toc, size
}

// cpuTime is the CPU time of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Every file of a layer is read as soon as it is mounted, while it is fetched. The CPU time is that of fetching,
// unpacking and reading by FUSE, for each GB of unpacked files: until everything is read, and until the layer is
// unpacked as well. A registry and the reader are part of this process.
func BenchmarkReadEveryFile(b *testing.B) {
	for _, c := range []struct {
		name string
		with estargz.Compressor
	}{
		{"estargz", estargz.NewGzipCompressor()},
		{"zstdchunked", &zstdchunked.Compressor{CompressionLevel: zstd.SpeedDefault}},
	} {
		b.Run(c.name, func(b *testing.B) { benchReads(b, c.with) })
	}
}

func benchReads(b *testing.B, with estargz.Compressor) {
	need.FUSE(b)
	layer, toc, size := benchLayer(b, with)
	d := digest.FromBytes(layer)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(layer))
	}))
	defer hub.Close()
	host := strings.TrimPrefix(hub.URL, "http://")
	labels := map[string]string{
		labelRef: host + "/bench:v1", labelLayer: d.String(), estargz.TOCJSONDigestAnnotation: toc.String(),
	}
	var read, spent time.Duration
	for b.Loop() {
		root, at := b.TempDir(), b.TempDir()
		before := cpuTime(b)
		s, err := newStore(Config{Root: root, Workers: DefaultWorkers, Piece: DefaultPiece, Patience: DefaultPatience,
			Settle: DefaultSettle, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		f, err := newFilesystem(filepath.Join(root, "cache"), s,
			docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost)))
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Mount(b.Context(), at, labels); err != nil {
			b.Fatal(err)
		}
		if got := readFiles(b, at); got != size {
			b.Errorf("read %d bytes, want %d", got, size)
		}
		read += cpuTime(b) - before
		for unpacking := true; unpacking; time.Sleep(5 * time.Millisecond) {
			s.mu.Lock()
			unpacking = s.stats.Complete == 0 || s.unpacking
			s.mu.Unlock()
		}
		spent += cpuTime(b) - before
		if err := f.Unmount(b.Context(), at); err != nil {
			b.Fatal(err)
		}
		s.close()
	}
	gigabytes := float64(b.N) * float64(size) / 1e9
	b.ReportMetric(read.Seconds()/gigabytes, "cpu-s/GB-read")
	b.ReportMetric(spent.Seconds()/gigabytes, "cpu-s/GB")
}

// readFiles reads every file in a folder, and returns how many bytes they have.
func readFiles(b *testing.B, dir string) (size int64) {
	b.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		n, err := io.Copy(struct{ io.Writer }{io.Discard}, file)
		size += n
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return size
}
