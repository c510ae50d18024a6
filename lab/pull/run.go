// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/netlab"
)

// Run implements lab.Params. It needs root.
func (p *Params) Run(ctx context.Context, out lab.Output) (_ []*report.Report, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root, to start a containerd and to make network namespaces: use sudo")
	}
	params, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &bench{p: params, out: out, versions: report.MachineVersions(),
		raw: Samples{Cores: runtime.NumCPU()}}
	if b.dir, err = os.MkdirTemp(params.Dir, "wangell-pull-"); err != nil {
		return nil, fmt.Errorf("make a folder on the disk to measure: %w", err)
	}
	defer func() {
		if removeErr := os.RemoveAll(b.dir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", removeErr))
		}
	}()
	before := report.LoadAverage()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if slices.Contains(params.Parts, PartPulls) {
		if err := b.pulls(ctx); err != nil {
			return nil, err
		}
	}
	if slices.Contains(params.Parts, PartWakes) {
		if err := b.wakes(ctx); err != nil {
			return nil, err
		}
	}
	if slices.Contains(params.Parts, PartLazy) {
		if err := b.lazy(ctx); err != nil {
			return nil, err
		}
	}
	if slices.Contains(params.Parts, PartPeers) {
		if err := b.peers(ctx); err != nil {
			return nil, err
		}
	}
	var reports []*report.Report
	if len(b.raw.Pulls)+len(b.raw.Wakes) > 0 {
		reports = append(reports, newReport(b.raw))
	}
	if len(b.explained) > 0 {
		reports = append(reports, newPhasesReport(b.explained))
	}
	if len(b.lazyRaw.Runs) > 0 {
		reports = append(reports, newLazyReport(b.lazyRaw))
	}
	if len(b.shares) > 0 {
		reports = append(reports, newPeersReport(b.shares))
	}
	for _, r := range reports {
		r.Time, r.Versions = time.Now(), b.versions
		r.Params = map[string]any{
			"size of the image": params.Size, "rounds": params.Rounds, "link of the registry": params.Link,
			"format of lazy images":       params.LazyFormat,
			"peers: link of the registry": params.PeersLink, "peers: size of the image (bytes)": params.PeersSize,
			"piece of split images (bytes, unpacked)": params.Piece, "parts": fmt.Sprint(params.Parts),
			"tuned: layers unpacked at once": params.Unpackers, "tuned: layers downloaded at once": params.Downloads,
			"load average at begin": before, "load average at end": report.LoadAverage(),
		}
	}
	return reports, nil
}

// prepare downloads what is needed, and fills the registry with the images.
func (b *bench) prepare(ctx context.Context) (err error) {
	cache, err := cacheFolder()
	if err != nil {
		return err
	}
	if b.version, err = containerd.ProgramVersion(ctx, b.p.Containerd); err != nil {
		return err
	}
	var version string
	if b.registry, version, err = debimage.Program(ctx, b.dir, "", registryPackage, registryProgram); err != nil {
		return err
	}
	b.versions["registry"] = version
	helper := pullstat.GzipHelpers(b.version)[0]
	if b.helper, version, err = debimage.Program(ctx, b.dir, "", helper.Package, helper.Program); err != nil {
		return err
	}
	b.versions[helper.Program] = version
	if slices.Contains(b.p.Parts, PartPulls) && canErofs(b.version) {
		if b.maker, version, err = debimage.MkfsErofs(ctx, b.dir); err != nil {
			return err
		}
		b.versions[erofs.Program] = version
	}
	b.none = filepath.Join(b.dir, "none")
	if err := os.Mkdir(b.none, 0o755); err != nil {
		return err
	}
	var built string
	if slices.ContainsFunc(imageNames(), b.stores) {
		if built, err = buildImage(ctx, b.p.Size, b.p.steps, cache, b.out.Log); err != nil {
			return err
		}
	}
	return b.withHub(ctx, 0, func(_ *netlab.Net, h *hub) error {
		if slices.Contains(b.p.Parts, PartPeers) {
			if err := b.storePeersImage(ctx, h); err != nil {
				return fmt.Errorf("image %s: %w", peersTag, err)
			}
		}
		if slices.Contains(b.p.Parts, PartLazy) || slices.Contains(b.p.Parts, PartWakes) {
			if err := b.storeLazy(ctx, h, built); err != nil {
				return fmt.Errorf("image %s: %w", lazyTags[Lazy], err)
			}
		}
		for _, v := range variants(b.p.Piece) {
			if !b.stores(v.name) {
				continue
			}
			if err := b.store(ctx, h, v, built); err != nil {
				return fmt.Errorf("image %s: %w", v.name, err)
			}
		}
		return nil
	})
}

// store converts the original as a variant says, and puts the result into the registry.
func (b *bench) store(ctx context.Context, h *hub, v variant, from string) (err error) {
	o := convert.Options{Source: from, Destination: filepath.Join(b.dir, "converted.tar"), Tag: imageTag}
	if o.Layers, err = convert.ParseLayers(v.layers); err != nil {
		return err
	}
	if o.Compression, err = convert.ParseCompression(v.compression); err != nil {
		return err
	}
	begin := time.Now()
	res, err := convert.Run(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(o.Destination)) }()
	stored := Image{Name: v.name}
	for _, l := range res.Images[0].After {
		stored.Layers++
		stored.Packed += l.Packed
		stored.Largest = max(stored.Largest, l.Packed)
	}
	if v.name != original {
		stored.Convert = time.Since(begin).Seconds()
	}
	b.raw.Images = append(b.raw.Images, stored)
	b.out.Log("image %-20s %3d layers, %7.1f MB packed", v.name, stored.Layers, float64(stored.Packed)/1e6)
	return h.push(ctx, o.Destination, v.name)
}
