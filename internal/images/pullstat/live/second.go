// SPDX-License-Identifier: Apache-2.0

package live

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/klauspost/compress/zstd"

	"wangell.loutres.me/internal/base/unzstd"
	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/pullstat"
)

// trialBytes of a layer, unpacked, are compressed with zstd to see what that would bring.
const trialBytes = 32 << 20

// secondPass unpacks each blob once more, as containerd does, with a clock around each stage.
func (s *scratch) secondPass(ctx context.Context, rec *pullstat.Recording, progress func(done, total int64)) error {
	if strings.HasPrefix(rec.Containerd, "1.") {
		// containerd 1.x does not know igzip. The library reads the variable when it first decompresses gzip.
		if err := os.Setenv("CONTAINERD_DISABLE_IGZIP", "1"); err != nil {
			return err
		}
	}
	var done, total int64
	for _, l := range rec.Layers {
		total += l.Packed
	}
	largest := -1 // of the gzip layers
	for i, l := range rec.Layers {
		progress(done, total)
		stage, err := s.unpackAgain(ctx, l.Digest, s.maker)
		if err == nil && s.maker.File != "" {
			stage.Files, err = s.countFiles(l.Digest)
		}
		if err != nil {
			return fmt.Errorf("second pass over layer %d (%s): %w", i+1, l.Digest, err)
		}
		rec.Stages = append(rec.Stages, stage)
		done += l.Packed
		if stage.Compression == "gzip" && (largest < 0 || l.Packed > rec.Layers[largest].Packed) {
			largest = i
		}
	}
	progress(done, total)
	if largest >= 0 {
		var err error
		if rec.Trial, err = s.tryZstd(ctx, rec.Layers[largest].Digest); err != nil {
			return fmt.Errorf("try zstd with layer %d: %w", largest+1, err)
		}
	}
	return nil
}

// clockedReader reads a tar archive as containerd's diff service does: decompressed, and hashed on the way.
type clockedReader struct {
	ctx   context.Context
	from  io.Reader
	hash  hash.Hash
	stage *pullstat.Stage
}

func (r *clockedReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	begin := time.Now()
	n, err := r.from.Read(p)
	read := time.Now()
	r.hash.Write(p[:n])
	r.stage.Decompress += read.Sub(begin)
	r.stage.Hash += time.Since(read)
	r.stage.Unpacked += int64(n)
	return n, err
}

// unpackAgain unpacks a blob into a folder that it removes: with a maker into an image, whose files it does not count.
func (s *scratch) unpackAgain(ctx context.Context, digest string, maker erofs.Maker) (stage pullstat.Stage, err error) {
	blob, err := os.Open(s.blob(digest))
	if err != nil {
		return stage, err
	}
	defer blob.Close()
	dir, err := os.MkdirTemp(s.dir.Path, "second-")
	if err != nil {
		return stage, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	begin := time.Now()
	plain, err := unzstd.Decompress(blob)
	if err != nil {
		return stage, err
	}
	defer plain.Close()
	stage.Compression = map[compression.Compression]string{
		compression.Uncompressed: "none", compression.Gzip: "gzip", compression.Zstd: "zstd",
	}[plain.GetCompression()]
	reader := &clockedReader{ctx: ctx, from: plain, hash: sha256.New(), stage: &stage}
	if maker.File != "" {
		err = maker.Make(ctx, reader, filepath.Join(dir, "layer"))
	} else {
		_, err = archive.Apply(ctx, dir, reader,
			archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
			archive.WithFilter(func(*tar.Header) (bool, error) { stage.Files++; return true, nil }))
	}
	if err != nil {
		return stage, err
	}
	if _, err := io.Copy(io.Discard, reader); err != nil {
		return stage, err
	}
	stage.Apply = time.Since(begin) - stage.Decompress - stage.Hash
	return stage, nil
}

// countFiles returns the number of entries in the archive of a blob.
func (s *scratch) countFiles(digest string) (n int64, err error) {
	blob, err := os.Open(s.blob(digest))
	if err != nil {
		return 0, err
	}
	defer blob.Close()
	plain, err := unzstd.Decompress(blob)
	if err != nil {
		return 0, err
	}
	defer plain.Close()
	for entries := tar.NewReader(plain); ; n++ {
		if _, err := entries.Next(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// tryErofs makes an image of EROFS of the layer whose files took longest to write; nil if no folder of path has a
// program for that.
func (s *scratch) tryErofs(ctx context.Context, rec pullstat.Recording, path string) (*pullstat.ErofsTrial, error) {
	maker, err := erofs.Find(ctx, path)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // there is nothing to advise
	}
	trial := &pullstat.ErofsTrial{}
	for i, stage := range rec.Stages {
		if stage.Apply > trial.Files {
			trial.Layer, trial.Files = i, stage.Apply
		}
	}
	stage, err := s.unpackAgain(ctx, rec.Layers[trial.Layer].Digest, maker)
	if err != nil {
		return nil, fmt.Errorf("try EROFS with layer %d: %w", trial.Layer+1, err)
	}
	trial.Image = stage.Apply
	return trial, nil
}

// tryZstd compresses the beginning of a gzip layer with zstd and compares how long both take to decompress.
func (s *scratch) tryZstd(ctx context.Context, digest string) (*pullstat.Trial, error) {
	blob, err := os.Open(s.blob(digest))
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	plain, gzipTime, err := decompress(blob)
	if err != nil {
		return nil, err
	}
	used, err := blob.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	encoder, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, err
	}
	if _, err := encoder.Write(plain); err != nil {
		return nil, err
	}
	if err := encoder.Close(); err != nil {
		return nil, err
	}
	trial := &pullstat.Trial{Unpacked: int64(len(plain)), Gzip: used, Zstd: int64(packed.Len()), GzipTime: gzipTime}
	_, trial.ZstdTime, err = decompress(&packed)
	return trial, err
}

// decompress returns the first trialBytes of a compressed stream, and how long decompressing them took.
func decompress(r io.Reader) ([]byte, time.Duration, error) {
	begin := time.Now()
	stream, err := unzstd.Decompress(r)
	if err != nil {
		return nil, 0, err
	}
	defer stream.Close()
	data, err := io.ReadAll(io.LimitReader(stream, trialBytes))
	return data, time.Since(begin), err
}
