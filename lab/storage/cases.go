// SPDX-License-Identifier: Apache-2.0

package storage

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
