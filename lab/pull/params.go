// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/lab/onenode"
)

// Parts of the experiment.
const (
	PartPulls = "pulls"
	PartWakes = "wakes"
	PartLazy  = "lazy"
	PartPeers = "peers"
)

// AllParts are the parts in the order in which they run.
var AllParts = []string{PartPulls, PartWakes, PartLazy, PartPeers}

// Params configures the experiment.
type Params struct {
	// Size is small or large. Default: large, or small if Quick.
	Size string
	// Rounds is how often each image is pulled with each setting, and each wake is repeated. Default: 5, or 1 if Quick.
	Rounds int
	// Link is the rate of the registry's link: a number with the unit kbit, mbit or gbit.
	Link string
	// Piece is the most bytes of a layer of the split images, unpacked. Default: 64 MB, or 8 MB if the size is small.
	Piece int64
	// Unpackers and Downloads are the recommended settings of containerd.
	Unpackers, Downloads int
	// Containerd is the program to measure, and Other another one, which is measured less. Default: the one built for
	// the test cluster, and the one in $PATH.
	Containerd, Other string
	// Wangell is the program whose wakes are measured. Default: see onenode.FindWangell.
	Wangell string
	// Snapshotter is the program for lazy pulls. Default: see containerd.FindSnapshotter.
	Snapshotter string
	// LazyFormat is the format of images for lazy pulls: convert.EStargz or convert.ZstdChunked.
	LazyFormat string
	// Sweep also compares settings of its background.
	Sweep bool
	// Dir is a folder on the disk to measure. Default: live.DefaultDir.
	Dir string
	// Parts are the parts to run. Default: all.
	Parts []string
	// Images are the ways to store the image that are measured. Default: all.
	Images []string
	// PeersSize is the size in bytes of the image that several nodes pull at once. Default: 600 MB, or 60 MB if Quick.
	PeersSize int64
	// PeersLink is the rate of the registry's link meanwhile, as Link.
	PeersLink string
	// Quick is a small image and one round: enough to see that it works, not to trust the numbers.
	Quick bool

	bits, peersBits uint64 // Link and PeersLink, per second
	// steps are the steps that build the image. Default: the recipe of Size.
	steps []step
	// cases are the pulls of the part peers. Default: peerCases.
	cases []peerCase
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Size, "size", "", "size of the image: small or large (default large, with --quick small)")
	f.IntVar(&p.Rounds, "rounds", 0, "how often each pull and each wake is measured (default 5, with --quick 1)")
	f.StringVar(&p.Link, "link", "1gbit", "rate of the registry's link, in kbit, mbit or gbit")
	f.Int64Var(&p.Piece, "piece", 0,
		"most bytes of a layer of the split images, unpacked (default 64000000, of a small image 8000000)")
	f.IntVar(&p.Unpackers, "unpackers", pullstat.RecommendedUnpackers, "layers unpacked at once, as recommended setting")
	f.IntVar(&p.Downloads, "downloads", pullstat.DefaultDownloads, "layers downloaded at once, as recommended setting")
	f.StringVar(&p.Containerd, "containerd-program", "",
		"containerd to measure (default: the one of `make cluster-build`, or in $PATH)")
	f.StringVar(&p.Other, "other-containerd-program", "",
		"another containerd, which pulls only two of the images (default: the one in $PATH, if it is another)")
	f.StringVar(&p.Wangell, "wangell", "", "program to measure (default: the wangell beside this program, or in $PATH)")
	f.StringVar(&p.Snapshotter, "snapshotter", "",
		"program for lazy pulls (default: the wangell-snapshotter beside this program, or in $PATH)")
	f.StringVar(&p.LazyFormat, "lazy-format", convert.ZstdChunked,
		"format of the images for lazy pulls: estargz or zstdchunked")
	f.BoolVar(&p.Sweep, "sweep", false, "lazy pulls also with other numbers and sizes of requests in the background")
	f.StringVar(&p.Dir, "dir", live.DefaultDir, "folder on the disk to measure")
	f.Int64Var(&p.PeersSize, "peers-size", 0,
		"bytes of the image that 1 to 3 nodes pull at once (default 600000000, with --quick 60000000)")
	f.StringVar(&p.PeersLink, "peers-link", "200mbit", "rate of the registry's link when 1 to 3 nodes pull at once")
	f.StringSliceVar(&p.Parts, "parts", nil, "which parts: pulls, wakes, lazy, peers (default all)")
	f.StringSliceVar(&p.Images, "images", nil, "which images: "+strings.Join(imageNames(), ", ")+" (default all)")
	f.BoolVar(&p.Quick, "quick", false, "small image, one round: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	if p.Size != "" && p.Size != small && p.Size != large {
		return fmt.Errorf("--size %q: want small or large", p.Size)
	}
	for _, n := range []struct {
		flag        string
		value, most int
	}{{"rounds", p.Rounds, 1000}, {"unpackers", p.Unpackers, 64}, {"downloads", p.Downloads, 64}} {
		if f.Changed(n.flag) && (n.value < 1 || n.value > n.most) {
			return fmt.Errorf("--%s %d: want 1 to %d", n.flag, n.value, n.most)
		}
	}
	if f.Changed("peers-size") && p.PeersSize < 1<<20 {
		return fmt.Errorf("--peers-size %d: want at least %d bytes", p.PeersSize, 1<<20)
	}
	if f.Changed("piece") && p.Piece < 1<<20 {
		return fmt.Errorf("--piece %d: want at least %d bytes", p.Piece, 1<<20)
	}
	for _, part := range p.Parts {
		if !slices.Contains(AllParts, part) {
			return fmt.Errorf("--parts: there is no %q, only %s", part, strings.Join(AllParts, " "))
		}
	}
	for _, image := range p.Images {
		if !slices.Contains(imageNames(), image) {
			return fmt.Errorf("--images: there is no %q, only %s", image, strings.Join(imageNames(), " "))
		}
	}
	if p.LazyFormat != convert.EStargz && p.LazyFormat != convert.ZstdChunked {
		return fmt.Errorf("--lazy-format %q: want %s or %s", p.LazyFormat, convert.EStargz, convert.ZstdChunked)
	}
	_, err := parseRate("--link", p.Link)
	if err == nil {
		_, err = parseRate("--peers-link", p.PeersLink)
	}
	return err
}

// imageNames returns the names of all variants.
func imageNames() []string {
	var names []string
	for _, v := range variants(0) {
		names = append(names, v.name)
	}
	return names
}

// parseRate parses the rate that a flag has, as tc(8) writes it, and returns bits per second.
func parseRate(flag, text string) (uint64, error) {
	for _, u := range []struct {
		name string
		bits float64
	}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}} {
		number, ok := strings.CutSuffix(strings.ToLower(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if bits := n * u.bits; err == nil && !math.IsNaN(n) && bits >= 1e6 && bits <= 1e11 {
			return uint64(bits), nil
		}
		break
	}
	return 0, fmt.Errorf("%s %q: want 1mbit to 100gbit", flag, text)
}

func (p Params) withDefaults() (_ Params, err error) {
	if p.Size == "" {
		p.Size = large
		if p.Quick {
			p.Size = small
		}
	}
	if p.Rounds == 0 {
		p.Rounds = 5
		if p.Quick {
			p.Rounds = 1
		}
	}
	if p.LazyFormat == "" {
		p.LazyFormat = convert.ZstdChunked
	}
	if p.steps == nil {
		p.steps = recipe(p.Size)
	}
	if p.Piece == 0 {
		p.Piece = 64_000_000
		if p.Size == small {
			p.Piece = 8_000_000
		}
	}
	if len(p.Parts) == 0 {
		p.Parts = AllParts
	}
	if len(p.Images) == 0 {
		p.Images = imageNames()
	}
	if p.PeersSize == 0 {
		p.PeersSize = 600_000_000
		if p.Quick {
			p.PeersSize = 60_000_000
		}
	}
	if p.bits, err = parseRate("--link", p.Link); err != nil {
		return p, err
	}
	if p.peersBits, err = parseRate("--peers-link", p.PeersLink); err != nil {
		return p, err
	}
	if p.Dir == "" {
		p.Dir = live.DefaultDir
	}
	if p.Containerd, p.Other, err = findContainerds(p.Containerd, p.Other); err != nil {
		return p, err
	}
	if p.Snapshotter == "" && (slices.Contains(p.Parts, PartLazy) || slices.Contains(p.Parts, PartWakes)) {
		if p.Snapshotter, err = containerd.FindSnapshotter(); err != nil {
			return p, err
		}
	}
	if p.Wangell == "" && (slices.Contains(p.Parts, PartWakes) || slices.Contains(p.Parts, PartPeers)) {
		p.Wangell, err = onenode.FindWangell()
	}
	return p, err
}

// findContainerds returns the programs to measure; other may be empty.
func findContainerds(program, other string) (string, string, error) {
	installed, err := exec.LookPath("containerd")
	if err != nil {
		installed = ""
	}
	if program == "" {
		program = installed
		if built := builtContainerd(); built != "" {
			program = built
		}
	}
	if program == "" {
		return "", "", errors.New("no containerd in $PATH, and none built by `make cluster-build`: " +
			"apt install containerd, or name one with --containerd-program")
	}
	if other == "" && installed != program {
		other = installed
	}
	return program, other, nil
}

// builtContainerd returns the newest containerd that test/cluster has built; empty: none.
func builtContainerd() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	found, err := filepath.Glob(filepath.Join(cache, "wangell", "cluster", "*", "containerd"))
	if err != nil {
		return ""
	}
	newest, at := "", int64(0)
	for _, f := range found {
		if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() && info.ModTime().UnixNano() > at {
			newest, at = f, info.ModTime().UnixNano()
		}
	}
	return newest
}
