// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"strings"
)

func workloads() []workload { return []workload{redmine{}, pgbench{}, fio{}} }

func workloadNames() (names []string) {
	for _, w := range workloads() {
		names = append(names, w.name())
	}
	return names
}

func workloadOf(name string) (workload, error) {
	for _, w := range workloads() {
		if w.name() == name {
			return w, nil
		}
	}
	return nil, fmt.Errorf("no workload %q: want %s", name, strings.Join(workloadNames(), " or "))
}

// diskSuffix ends the names of the reports about the disk.
const diskSuffix = "-disk"

// reportName is the name of the report of a workload.
func reportName(workload string) string {
	if workload == (redmine{}).name() {
		return "storage"
	}
	return "storage-" + workload
}

func reportNames() (names []string) {
	for _, w := range workloadNames() {
		names = append(names, reportName(w), reportName(w)+diskSuffix)
	}
	return names
}
