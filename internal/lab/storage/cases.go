// SPDX-License-Identifier: Apache-2.0

package storage

import "slices"

// Disks: what the instance's folders lie on.
const (
	diskMachine      = "machine"      // the file system of the folder for temporary files
	diskPreallocated = "preallocated" // ext4 in a file whose blocks are reserved, by a loop device
	diskSparse       = "sparse"       // ext4 in a file without blocks, by a loop device
	diskDevice       = "device"       // ext4 on a block device
	diskBtrfs        = "btrfs"        // Btrfs in a preallocated file, by a loop device
)

// keyDevice is the key of the test that needs a block device.
const keyDevice = "device"

// Case is a test: what runs, and where it writes.
type Case struct {
	// Key is its short name, as in keys of the summary.
	Key string `json:"key"`
	// Test is the number of the report's test that it repeats; 0: none.
	Test int `json:"test,omitempty"`
	// Name says what it is.
	Name string `json:"name"`
	// Disk is what the instance's folders lie on.
	Disk string `json:"disk"`
	// Direct runs the programs without a container, a layer and the gate.
	Direct bool `json:"direct,omitempty"`
	// Snapshotter is Direct, with the files in a writable snapshot of this snapshotter.
	Snapshotter string `json:"snapshotter,omitempty"`
	// Volume puts the data on a persistent volume, instead of the container's layer.
	Volume bool `json:"volume,omitempty"`
	// Split runs the two parts of the application in a container each.
	Split bool `json:"split,omitempty"`
	// Tuned has the settings of Workload.tuned.
	Tuned bool `json:"tuned,omitempty"`
	// CPU and Memory are limits of each container; empty: none.
	CPU    string `json:"cpu,omitempty"`
	Memory string `json:"memory,omitempty"`
	// Workers, Pool and Flush are settings of Redmine's sweep; empty: those of the test.
	Workers string `json:"workers,omitempty"`
	Pool    string `json:"pool,omitempty"`
	Flush   string `json:"flush,omitempty"`
}

// allCases are the tests in the order of the report.
func allCases(w workload) []Case {
	cpu, memory := w.limits()
	cases := []Case{
		{Key: "direct", Name: "no container: the same programs directly on the machine", Disk: diskMachine, Direct: true},
		{Key: "layer", Test: 1, Name: "1: one container, data in its layer", Disk: diskMachine},
		{Key: "preallocated", Test: 2, Name: "2: the same, on ext4 in a preallocated file", Disk: diskPreallocated},
		{Key: "sparse", Name: "2: the same, on ext4 in a sparse file", Disk: diskSparse},
		{Key: keyDevice, Name: "2: the same, on ext4 on a block device", Disk: diskDevice},
		{Key: "volume", Test: 3, Name: "3: one container, data on a volume", Disk: diskMachine, Volume: true},
		{Key: "split_layer", Test: 4, Name: "4: two containers, data in the layer", Disk: diskMachine, Split: true},
		{Key: "split_volume", Name: "4: two containers, data on volumes", Disk: diskMachine, Split: true, Volume: true},
		{Key: "tuned", Test: 5, Name: "5: as the line above, tuned", Disk: diskMachine, Split: true, Volume: true,
			Tuned: true},
		{Key: "btrfs_layer", Name: "one container, layer on Btrfs in a preallocated file", Disk: diskBtrfs},
		{Key: "btrfs_volume", Name: "one container, volume on Btrfs in a preallocated file", Disk: diskBtrfs, Volume: true},
		{Key: "cpu", Name: "as 3, limits.cpu " + cpu, Disk: diskMachine, Volume: true, CPU: cpu},
		{Key: "memory", Name: "as 3, limits.memory " + memory, Disk: diskMachine, Volume: true, Memory: memory},
	}
	for _, s := range []string{"overlayfs", "native", "btrfs", "blockfile", "erofs"} {
		c := Case{Key: "snapshotter_" + s, Name: "no container, in a snapshot of " + s, Disk: diskMachine, Snapshotter: s}
		if s == "btrfs" {
			c.Disk = diskBtrfs
		}
		cases = append(cases, c)
	}
	return cases
}

// sweep are the settings of the tuned test one by one and together: workers of Apache × pool of Passenger × how MariaDB
// writes its log.
func sweep() (cases []Case) {
	for _, workers := range []string{redmineBefore.workers, redmineTuned.workers} {
		for _, pool := range []string{redmineBefore.pool, redmineTuned.pool} {
			for _, flush := range []string{redmineBefore.flush, redmineTuned.flush} {
				cases = append(cases, Case{Key: "sweep_" + workers + "_" + pool + "_" + flush,
					Name: "5: MaxClients " + workers + ", pool " + pool + ", flush at commit " + flush, Disk: diskMachine,
					Split: true, Volume: true, Workers: workers, Pool: pool, Flush: flush})
			}
		}
	}
	return cases
}

func testKeys() (keys []string) {
	for _, c := range allCases(redmine{}) {
		keys = append(keys, c.Key)
	}
	return keys
}

// cases are the tests to run.
func (p Params) cases(w workload) []Case {
	cases := slices.DeleteFunc(allCases(w), func(c Case) bool {
		return len(p.Tests) > 0 && !slices.Contains(p.Tests, c.Key) || c.Key == keyDevice && p.Device == ""
	})
	if p.Sweep {
		cases = append(cases, sweep()...)
	}
	return cases
}
