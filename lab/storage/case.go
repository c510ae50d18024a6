// SPDX-License-Identifier: Apache-2.0

package storage

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
