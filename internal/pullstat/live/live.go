// SPDX-License-Identifier: Apache-2.0

// Package live pulls an image into a throw-away containerd, and records what package pullstat needs to explain where
// the time went: containerd's events and log, the state of its content store, and a second pass over each layer.
package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"wangell.loutres.me/internal/image/tarserve"
	"wangell.loutres.me/internal/pullstat"
)

// Ways of pulling.
const (
	// ViaContainerd pulls with containerd's client library, which downloads, and lets containerd store and unpack:
	// the way of wangell up and nerdctl.
	ViaContainerd = "containerd"
	// ViaCRI has containerd's CRI plugin pull, the way of kubelet.
	ViaCRI = "cri"
)

// DefaultDir is where the folder of a throw-away containerd is made: usually the disk of the machine's images.
const DefaultDir = "/var/lib"

const progressEvery = 250 * time.Millisecond

// Stages of Run, for progress.
const (
	StageStart  = "start containerd"
	StagePull   = "pull"
	StageSecond = "second pass"
)

// Options says what to pull, and how.
type Options struct {
	// Image is a reference, as in a manifest, or the path of a tarball: an OCI layout or in the format of docker save.
	Image string
	// Via is ViaContainerd or ViaCRI.
	Via string
	// Program is containerd's program, in $PATH or as a path.
	Program string
	// Dir is the folder on the disk to measure. Everything below it that Run makes is removed when Run returns.
	Dir string
	// Insecure are registries accessed over plain HTTP, as HOST or HOST:PORT. localhost and 127.0.0.0/8 always are.
	Insecure []string
	// Unpackers is the number of layers to unpack at once; 0 means 1. More needs containerd 2.2.3: earlier ones cannot,
	// or do it wrongly.
	Unpackers int
	// Downloads is the number of layers to download at once, through CRI; 0 means containerd's default, 3. Others need
	// containerd 2.1, whose transfer service pulls for CRI.
	Downloads int
	// Path is where containerd looks for programs, such as those that decompress; empty: this program's $PATH.
	Path string
	// Namespace is the file of the network namespace of containerd; empty: this program's. Through ViaContainerd this
	// program downloads, in its own.
	Namespace string
	// Config is added to the configuration of containerd.
	Config string
	// NoSecondPass leaves out the second pass: the recording has no Stages and no Trial.
	NoSecondPass bool
	// Progress gets the stage and the bytes of it that are done; a total of 0 is not known yet. It may be nil.
	Progress func(stage string, done, total int64)
}

// Run pulls an image and records the pull. It needs root. When it returns, also with an error or because ctx ended,
// the throw-away containerd, its mounts and its files are gone.
func Run(ctx context.Context, o Options) (rec pullstat.Recording, err error) {
	if os.Geteuid() != 0 {
		return rec, errors.New("needs root, to start a containerd and unpack as it does: use sudo")
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	from, err := findSource(o.Image, o.Insecure)
	if err != nil {
		return rec, err
	}
	defer from.close()
	o.Progress(StageStart, 0, 0)
	s, err := startScratch(ctx, o, from.plain())
	if err == nil {
		defer func() { err = errors.Join(err, s.close()) }()
		rec, err = s.record(ctx, o, from)
	}
	switch {
	case err == nil:
		return rec, nil
	case ctx.Err() != nil: // its consequences say less
		return rec, fmt.Errorf("analyse %s: %w", o.Image, ctx.Err())
	}
	return rec, fmt.Errorf("analyse %s: %w", o.Image, err)
}

// record pulls the image into s, and makes the second pass.
func (s *scratch) record(ctx context.Context, o Options, from source) (rec pullstat.Recording, err error) {
	rec = pullstat.Recording{Image: o.Image, Via: o.Via, Cores: runtime.NumCPU()}
	version, err := s.client.Version(ctx)
	if err != nil {
		return rec, err
	}
	rec.Containerd, _, _ = strings.Cut(strings.TrimPrefix(version.Version, "v"), "~")
	if o.Unpackers > 1 && !pullstat.UnpacksInParallel(rec.Containerd) {
		return rec, fmt.Errorf("containerd %s cannot unpack %d layers at once: use 2.2.3 or later, or one unpacker",
			rec.Containerd, o.Unpackers)
	}
	rec.Unpackers = o.Unpackers
	rec.GzipHelper = gzipHelper(rec.Containerd, o.path())
	w, err := watch(ctx, s.client, func(done, total int64) { o.Progress(StagePull, done, total) })
	if err != nil {
		return rec, err
	}
	defer w.close()
	pull := s.pullClient
	if o.Via == ViaCRI {
		pull = s.pullCRI // the number of unpackers is in containerd's configuration
	}
	before, err := s.proc.CPU()
	if err != nil {
		return rec, err
	}
	rec.Begin = time.Now()
	fetches, err := pull(ctx, from, o.Unpackers)
	rec.End = time.Now()
	if err != nil {
		return rec, explain(from.ref, err)
	}
	after, err := s.proc.CPU()
	if err != nil {
		return rec, err
	}
	rec.CPU = after - before
	if err := w.barrier(ctx, "end"); err != nil {
		return rec, err
	}
	w.close()
	if rec.Layers, err = s.layers(ctx, from.ref); err != nil {
		return rec, err
	}
	stored, err := s.storedTimes(ctx, rec.Layers)
	if err != nil {
		return rec, err
	}
	// Idle or not, containerd must not compete with the second pass.
	if err := s.stop(); err != nil {
		return rec, err
	}
	logged, err := s.logged()
	if err != nil {
		return rec, err
	}
	rec.Events = eventsAbout(rec.Layers, w.collected(), fetches, logged, stored)
	if o.NoSecondPass {
		return rec, nil
	}
	rec.Stages, rec.Trial, err = s.secondPass(ctx, rec, func(done, total int64) { o.Progress(StageSecond, done, total) })
	return rec, err
}

// eventsAbout returns the events about the layers among several lists.
func eventsAbout(layers []pullstat.Layer, lists ...[]pullstat.Event) []pullstat.Event {
	about := map[string]bool{}
	for _, l := range layers {
		about[l.Digest], about[l.ChainID] = true, true
	}
	var found []pullstat.Event
	for _, list := range lists {
		for _, e := range list {
			if about[e.ID] {
				found = append(found, e)
			}
		}
	}
	return found
}

// logged returns the events in containerd's log.
func (s *scratch) logged() ([]pullstat.Event, error) {
	f, err := os.Open(s.logFile())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return logEvents(f)
}

// path returns where containerd looks for programs.
func (o Options) path() string {
	if o.Path != "" {
		return o.Path
	}
	return os.Getenv("PATH")
}

// gzipHelper returns the program in the folders of path that a version of containerd decompresses gzip with; empty:
// none.
func gzipHelper(version, path string) string {
	for _, h := range pullstat.GzipHelpers(version) {
		for _, dir := range filepath.SplitList(path) {
			if _, err := exec.LookPath(filepath.Join(dir, h.Program)); err == nil && filepath.IsAbs(dir) {
				return h.Program
			}
		}
	}
	return ""
}

// source is where an image comes from.
type source struct {
	ref      string
	insecure []string
	server   *tarserve.Server // nil if the image is in a registry
}

// findSource returns the source of an image. A name of an existing file is a tarball, which is served on a loopback
// address.
func findSource(image string, insecure []string) (source, error) {
	if info, err := os.Stat(image); err == nil && info.Mode().IsRegular() {
		server, err := tarserve.Start(image)
		if err != nil {
			return source{}, err
		}
		return source{ref: server.Ref(), insecure: insecure, server: server}, nil
	} else if strings.HasPrefix(image, "/") || strings.HasPrefix(image, ".") || strings.HasSuffix(image, ".tar") {
		if err == nil {
			err = errors.New("not a regular file")
		}
		return source{}, fmt.Errorf("tarball %s: %w", image, err)
	}
	ref, err := normalized(image)
	return source{ref: ref, insecure: insecure}, err
}

func (s source) close() {
	if s.server != nil {
		s.server.Close()
	}
}
