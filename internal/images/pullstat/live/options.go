// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"os"

	"wangell.loutres.me/internal/runtime/containerd"
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
	// Snapshotter is containerd's; empty: overlayfs. With erofs, layers are unpacked by the differ of that name.
	Snapshotter string
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

// snapshotter is Snapshotter, or the default of containerd's CRI plugin and its client library.
func (o Options) snapshotter() string { return cmp.Or(o.Snapshotter, containerd.DefaultSnapshotter) }

// path returns where containerd looks for programs.
func (o Options) path() string {
	if o.Path != "" {
		return o.Path
	}
	return os.Getenv("PATH")
}
