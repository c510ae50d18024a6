// SPDX-License-Identifier: Apache-2.0

// Package storage is the experiment `wangell-lab storage`: the cost of the place where a container writes.
package storage

import (
	"fmt"
	"slices"
	"strings"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "storage",
		Question: "What does it cost where a container writes?",
		Help: `Storage runs an application that writes, as services of Wangell on one machine, and measures
its clients' times while its data are in the container's own layer, on a file system of
their own, and on a persistent volume; in one container and in two; tuned and not; with
limits; and without containers, in a snapshot of each snapshotter too. Iostat runs
throughout.

Workload redmine is Redmine in Apache with Passenger, and MariaDB; its users are Apache
JMeter's, which Maven fetches. Workload pgbench is PostgreSQL behind PgBouncer, and bank
transfers. Workload fio is a server of fio, and reads and writes blocks, each write
followed by fdatasync. The packages are Debian's, and the images are made at run time.

Needs root, apt, iostat, mkfs.ext4 and mkfs.btrfs on this machine, and the workload's
client: Maven and Java, pgbench, or fio. The snapshotter erofs needs containerd 2.1 and
mkfs.erofs, blockfile containerd 1.7; without them it is left out, and the report says so.
Before each measurement the caches of the whole machine are dropped.`,
		Example: `  sudo wangell-lab storage --out out
  sudo wangell-lab storage --rate 2000 --duration 1m --repetitions 3 --sweep --out out
  sudo wangell-lab storage --workload pgbench --rate 2000 --duration 1m --repetitions 3 --out out
  sudo wangell-lab storage --workload fio --quick --tests layer,volume --out out -o json
  sudo wangell-lab storage --workload pgbench --device /dev/sdb1 --out out`,
		Reports:   reportNames(),
		NewParams: func() lab.Params { return &Params{} },
		Render:    render,
	})
}

func render(saved *report.Saved) (*report.Report, error) {
	var raw Samples
	if err := saved.Samples(&raw); err != nil {
		return nil, err
	}
	name, ofDisk := strings.CutSuffix(saved.Name, diskSuffix)
	i := slices.IndexFunc(workloads(), func(w workload) bool { return reportName(w.name()) == name })
	if i < 0 {
		return nil, fmt.Errorf("report %s: it is of no workload", saved.Name)
	}
	w := workloads()[i]
	if ofDisk {
		return saved.Restore(newDiskReport(w, raw)), nil
	}
	return saved.Restore(newReport(w, raw)), nil
}
