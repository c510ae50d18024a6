// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/test/testutil/netlab"
)

// job is a pull to be measured.
type job struct {
	image, settings string
	other           bool
}

// of returns the jobs whose image is among some.
func of(images []string, all []job) []job {
	return slices.DeleteFunc(slices.Clone(all), func(j job) bool { return !slices.Contains(images, j.image) })
}

// withOverlayfs are the images that are also pulled with recommended settings and the snapshotter overlayfs, if the
// machine can use erofs.
var withOverlayfs = []string{original, "zstd", "split", best}

// jobs returns the pulls of one round. A containerd that cannot unpack in parallel has no such settings.
func jobs(parallel, withErofs, other bool) []job {
	var all []job
	for _, v := range variants(0) {
		all = append(all, job{v.name, Defaults, false}, job{v.name, Tuned, false})
		if withErofs && slices.Contains(withOverlayfs, v.name) {
			all = append(all, job{v.name, Overlayfs, false})
		}
	}
	for _, c := range checked {
		if c.settings == Parallel && parallel {
			all = append(all, job{c.image, Parallel, false})
		}
	}
	if other {
		all = append(all, job{original, Defaults, true}, job{best, Defaults, true})
	}
	return all
}

// explainedJobs are the pulls whose phases are reported, as Figures 2 to 4 did.
var explainedJobs = []job{
	{original, Defaults, false}, {"uncompressed", Defaults, false}, {"squash", Defaults, false}, {best, Tuned, false},
}

// pulls measures the pulls, in an order that is another one in each round.
func (b *bench) pulls(ctx context.Context) error {
	// The second pass uses the library's own gzip, as containerd does by default.
	for _, name := range []string{"CONTAINERD_DISABLE_IGZIP", "CONTAINERD_DISABLE_PIGZ"} {
		if err := os.Setenv(name, "1"); err != nil {
			return err
		}
	}
	round := of(b.p.Images, jobs(pullstat.UnpacksInParallel(b.version), b.maker != "", b.p.Other != ""))
	explained := of(b.p.Images, explainedJobs)
	total := b.p.Rounds*len(round) + len(explained)
	return b.withHub(ctx, 0, func(network *netlab.Net, h *hub) error {
		for _, j := range explained {
			if err := b.explain(ctx, network, h, j); err != nil {
				return err
			}
			b.progress(total)
		}
		for r := range b.p.Rounds {
			for _, i := range rand.New(rand.NewPCG(uint64(r), 0)).Perm(len(round)) {
				if err := b.pull(ctx, network, h, r+1, round[i]); err != nil {
					return err
				}
				b.progress(total)
			}
		}
		return nil
	})
}

// options returns how a pull is made.
func (b *bench) options(network *netlab.Net, h *hub, j job) live.Options {
	o := live.Options{
		Image: h.ref(j.image), Via: live.ViaCRI, Program: b.p.Containerd, Dir: b.dir, Insecure: []string{h.Host},
		Path: b.none, Namespace: network.Node.Path,
	}
	if j.other {
		o.Program = b.p.Other
	}
	switch j.settings {
	case Parallel:
		o.Unpackers = runtime.NumCPU()
	case Tuned, Overlayfs:
		o.Path = b.helper
		if j.settings == Tuned && b.maker != "" {
			o.Path += string(filepath.ListSeparator) + b.maker
			o.Snapshotter = erofs.Snapshotter
		}
		if !pullstat.UnpacksInParallel(b.version) {
			break
		}
		o.Unpackers = b.p.Unpackers
		if b.p.Downloads != pullstat.DefaultDownloads {
			o.Downloads = b.p.Downloads
		}
	}
	return o
}

// pull measures one pull.
func (b *bench) pull(ctx context.Context, network *netlab.Net, h *hub, round int, j job) error {
	if err := b.settle(); err != nil {
		return err
	}
	o := b.options(network, h, j)
	o.NoSecondPass = true
	before, err := h.proc.CPU()
	if err != nil {
		return err
	}
	rec, err := live.Run(ctx, o)
	if err != nil {
		return err
	}
	after, err := h.proc.CPU()
	if err != nil {
		return err
	}
	p := Pull{Round: round, Image: j.image, Settings: j.settings, Other: j.other, Containerd: rec.Containerd,
		Pull: rec.End.Sub(rec.Begin).Seconds(), CPU: rec.CPU.Seconds(), RegistryCPU: (after - before).Seconds()}
	if p.Fetch, p.Unpack, err = pullstat.Busy(rec); err != nil {
		return fmt.Errorf("pull of %s: %w", j.image, err)
	}
	name := "containerd"
	if j.other {
		name = "other containerd"
	}
	b.versions[name] = rec.Containerd
	b.raw.Pulls = append(b.raw.Pulls, p)
	b.out.Log("%-20s %-8s containerd %s: %6.2f s, downloads %6.2f s, unpacking %6.2f s", p.Image, p.Settings,
		p.Containerd, p.Pull, p.Fetch, p.Unpack)
	return nil
}

// explain measures one pull with all its phases.
func (b *bench) explain(ctx context.Context, network *netlab.Net, h *hub, j job) error {
	if err := b.settle(); err != nil {
		return err
	}
	rec, err := live.Run(ctx, b.options(network, h, j))
	if err != nil {
		return err
	}
	r, err := pullstat.Analyse(rec)
	if err != nil {
		return err
	}
	b.explained = append(b.explained, Explained{Image: j.image, Settings: j.settings, Report: r})
	if j.image == original && j.settings == Defaults {
		b.raw.Analysed = r.Pull
		for _, a := range r.Advice {
			b.raw.Advice = append(b.raw.Advice, Advice{Do: a.Do, Expected: a.Expected})
		}
	}
	b.out.Log("%-20s %-8s explained: %6.2f s", j.image, j.settings, r.Pull)
	return nil
}
