// SPDX-License-Identifier: Apache-2.0

// Package pull is the experiment `wangell-lab pull`: how long a pull takes, by the way the layers are stored and by the
// settings of containerd, and what that does to the first wake of a service.
package pull

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "pull",
		Question: "What does the pull of an image wait for, and which images and settings make it short?",
		Help: `Pull makes a machine-learning image of Debian packages and Python wheels, which it
downloads once into ~/.cache/wangell/pull, stores it in seven ways (wangell image
convert), and has a containerd of its own pull each through CRI from the distribution
project's registry behind a limited link: with containerd's defaults, and with the
settings that wangell doctor recommends. Then a service whose image is not on the
machine gets its first request, also in a cluster where another node has the image,
without and with peers. Programs start from an image that is not there yet, with
wangell-snapshotter and without. At last one to three nodes pull an image of random
bytes at once, without and with peers, and while things go wrong. It needs Debian or
Ubuntu, python3 with pip unless only peers run, and with --size large 12 GB of disk
below --dir.`,
		Example: `  sudo wangell-lab pull --out out
  sudo wangell-lab pull --size small --rounds 3 --link 200mbit --out out
  sudo wangell-lab pull --quick --parts pulls --out out
  sudo wangell-lab pull --parts lazy --sweep --rounds 3 --link 200mbit --out out
  sudo wangell-lab pull --parts peers --rounds 3 --out out`,
		Reports:   []string{reportName, phasesName, lazyName, peersName},
		NewParams: func() lab.Params { return &Params{} },
		Render:    render,
	})
}

func render(saved *report.Saved) (*report.Report, error) {
	switch saved.Name {
	case phasesName:
		var raw []Explained
		if err := saved.Samples(&raw); err != nil {
			return nil, err
		}
		return saved.Restore(newPhasesReport(raw)), nil
	case lazyName:
		var raw lazySamples
		if err := saved.Samples(&raw); err != nil {
			return nil, err
		}
		return saved.Restore(newLazyReport(raw)), nil
	case peersName:
		var raw peerPulls
		if err := saved.Samples(&raw); err != nil {
			return nil, err
		}
		return saved.Restore(newPeersReport(raw)), nil
	}
	var raw Samples
	if err := saved.Samples(&raw); err != nil {
		return nil, err
	}
	return saved.Restore(newReport(raw)), nil
}
