// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"math"
	"strings"

	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/lab/report"
)

// Image is a way to store the layers. Sizes are in bytes.
type Image struct {
	Name    string `json:"name"`
	Layers  int    `json:"layers"`
	Packed  int64  `json:"packed_bytes"`
	Largest int64  `json:"largest_layer_bytes"`
	// Convert is how long the conversion took, in seconds; 0 for the original.
	Convert float64 `json:"convert_s"`
}

// words returns the name of an image for people.
func words(name string) string { return strings.ReplaceAll(name, "_", " + ") }

// Settings of containerd.
const (
	// Defaults has pulls with containerd's defaults: one unpacker, three downloads, its own gzip.
	Defaults = "defaults"
	// Parallel has one unpacker per core, as the advice of image analyse assumes.
	Parallel = "parallel"
	// Overlayfs are the recommended ones, except for the snapshotter: several unpackers, and a program for gzip.
	Overlayfs = "overlayfs"
	// Tuned are the recommended ones: those, and the snapshotter erofs if the machine can use it.
	Tuned = "tuned"
)

// Pull is one pull. Times are in seconds.
type Pull struct {
	Round      int    `json:"round"`
	Image      string `json:"image"`
	Settings   string `json:"settings"`
	Containerd string `json:"containerd"` // its version
	// Other is set for a pull by the other containerd.
	Other bool    `json:"other,omitempty"`
	Pull  float64 `json:"pull_s"`
	// Fetch and Unpack are how long at least one layer was being downloaded, and unpacked.
	Fetch  float64 `json:"fetch_s"`
	Unpack float64 `json:"unpack_s"`
	// CPU is the processor time of containerd with its helpers, RegistryCPU that of the registry, during the pull.
	CPU         float64 `json:"containerd_cpu_s"`
	RegistryCPU float64 `json:"registry_cpu_s"`
}

// Kinds of wakes; Lazy, with imagePull {when: Wake, mode: Lazy} and the image in Params.LazyFormat, is another one.
const (
	// Stock is the first wake of a service with imagePull {when: Wake}: the image is pulled meanwhile.
	Stock = "stock"
	// Prefetch is the first wake of a service whose image was pulled when it was created.
	Prefetch = "prefetch"
	// Warm is a later wake.
	Warm = "warm"
	// Peers is a first wake as Stock on a node of a cluster whose nodes share images, beside one that has the image.
	// NoPeers is the same where they do not share.
	Peers   = "peers"
	NoPeers = "no_peers"
)

// Wake is one cold request. Times are in seconds.
type Wake struct {
	Round int    `json:"round"`
	Kind  string `json:"kind"`
	// FirstByte is from before connect() to the first byte of the answer.
	FirstByte float64 `json:"first_byte_s"`
	// Prefetched is the time from the creation of the service until its image was present; 0 if the experiment did
	// not wait for it.
	Prefetched float64 `json:"prefetched_s,omitempty"`
	// OriginRatio is the number of bytes that the registry's host has sent meanwhile, including packet headers,
	// divided by the packed size of the image, and FromPeers the number of bytes that the node has received from
	// others. Only wakes in a cluster have them.
	OriginRatio float64 `json:"origin_bytes_ratio,omitempty"`
	FromPeers   float64 `json:"from_peers_bytes,omitempty"`
	// Error is why the request was lost; empty if it was answered.
	Error string `json:"error,omitempty"`
}

// Faults of a pull by several nodes.
const (
	// FaultPeerDies kills a node in the middle of the pull.
	FaultPeerDies = "peer_dies"
	// FaultGarbage has one node hold the image, with a wrong byte in each layer.
	FaultGarbage = "garbage"
	// FaultRegistryGone ends the registry while one node has the image.
	FaultRegistryGone = "registry_gone"
	// FaultLeader replaces the controller in the middle of the pull.
	FaultLeader = "leader"
)

// AllPeerFaults are the faults in the order in which they are tried.
var AllPeerFaults = []string{FaultPeerDies, FaultGarbage, FaultRegistryGone, FaultLeader}

// PeerPull is a pull by several nodes at once. Times are in seconds since the nodes were asked for the image.
type PeerPull struct {
	Nodes int `json:"nodes"`
	// Peers is whether they share images.
	Peers bool   `json:"peers"`
	Fault string `json:"fault,omitempty"`
	// Open is whether the registry's link had no limit.
	Open bool `json:"open,omitempty"`
	// Done is when each node got the image, except those that had it before or died. Last is the greatest.
	Done []float64 `json:"done_s"`
	Last float64   `json:"last_s"`
	// OriginRatio is the number of bytes that the registry's host has sent meanwhile, including packet headers,
	// divided by the size of the image.
	OriginRatio float64 `json:"origin_bytes_ratio"`
	// OriginDone is when the registry's host had sent 99 % of that: from then on the nodes waited for each other, for
	// their disks and for processors.
	OriginDone float64 `json:"origin_done_s"`
	// Received is when the last node's device had received 99 % of its bytes. With a fault, it and the following
	// fields are 0.
	Received float64 `json:"received_s,omitempty"`
	// ContainerdCPU and DaemonCPU are the processor time of all nodes, RegistryCPU that of the registry.
	ContainerdCPU float64 `json:"containerd_cpu_s,omitempty"`
	DaemonCPU     float64 `json:"daemon_cpu_s,omitempty"`
	RegistryCPU   float64 `json:"registry_cpu_s,omitempty"`
	// FromPeers is the number of bytes that the nodes have received from each other.
	FromPeers float64 `json:"from_peers_bytes"`
	// Banned is how often a node was found to have sent wrong pieces.
	Banned float64 `json:"banned"`
}

// peerPulls are all pulls by several nodes in the order in which they were measured.
type peerPulls []PeerPull

// Explained is a pull with all its phases.
type Explained struct {
	Image    string          `json:"image"`
	Settings string          `json:"settings"`
	Report   pullstat.Report `json:"report"`
}

// Advice is what image analyse expected of a change, in seconds.
type Advice struct {
	Do       string  `json:"do"`
	Expected float64 `json:"expected_s"`
}

// Samples are all samples in the order in which they were taken.
type Samples struct {
	// Cores is the number of CPU cores.
	Cores  int      `json:"cores"`
	Images []Image  `json:"images"`
	Pulls  []Pull   `json:"pulls"`
	Wakes  []Wake   `json:"wakes"`
	Advice []Advice `json:"advice"`
	// Analysed is the duration of the pull that was analysed, in seconds.
	Analysed float64 `json:"analysed_s"`
}

// seconds returns a figure of the pulls of an image with settings.
func (s Samples) seconds(image, settings string, other bool, f func(Pull) float64) []float64 {
	return report.Collect(s.Pulls, func(p Pull) (float64, bool) {
		return f(p), p.Image == image && p.Settings == settings && p.Other == other
	})
}

// median is NaN if nothing was measured.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	return report.Median(samples)
}

func (s Samples) median(image, settings string, f func(Pull) float64) float64 {
	return median(s.seconds(image, settings, false, f))
}

func pullSeconds(p Pull) float64 { return p.Pull }

func fetchSeconds(p Pull) float64 { return p.Fetch }

func unpackSeconds(p Pull) float64 { return p.Unpack }

// wakes returns the times of the wakes of a kind that were answered.
func (s Samples) wakes(kind string) []float64 {
	return report.Collect(s.Wakes, func(w Wake) (float64, bool) { return w.FirstByte, w.Kind == kind && w.Error == "" })
}

func (s Samples) lost() (n float64) {
	for _, w := range s.Wakes {
		if w.Error != "" {
			n++
		}
	}
	return n
}
