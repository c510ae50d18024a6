// SPDX-License-Identifier: Apache-2.0

// Package containerd runs pods through containerd and runc on one machine. Each pod is one container with a network
// namespace of package podnet. The package connects to a containerd that runs already, or keeps one of its own.
package containerd

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime/podnet"
)

// Values of Config.Containerd, besides the path of a socket.
const (
	// Auto uses the containerd at SystemSocket if it answers, and Owned otherwise.
	Auto = "auto"
	// Owned starts a containerd for this instance alone, or uses the one that an earlier process of it started.
	Owned = "own"
)

// SystemSocket is the default socket of a machine's own containerd.
const SystemSocket = "/run/containerd/containerd.sock"

// DefaultNamespace is the default of Config.Namespace.
const DefaultNamespace = "wangell"

// DefaultSnapshotter is the default of Config.Snapshotter.
const DefaultSnapshotter = "overlayfs"

// snapshotterPlugin is containerd's name for the type of its snapshotters.
const snapshotterPlugin = "io.containerd.snapshotter.v1"

// Config configures a Runtime. The zero value of an optional field means its default.
type Config struct {
	// Containerd is Auto, Owned or the absolute path of a socket. Default: Auto.
	Containerd string
	// Namespace is the containerd namespace for images and containers. Default: DefaultNamespace.
	Namespace string
	// Instance distinguishes the pods of several instances on one machine, in labels, cgroup paths and device names. At
	// most 32 letters, digits and hyphens. Default: 8 hex digits of the SHA-256 of RunDir.
	Instance string
	// StateDir is the folder for data that survives a reboot or belongs on a disk: logs/, emptydirs/ and, for an own
	// containerd, containerd/ with the images. Absolute. Required.
	StateDir string
	// RunDir is the folder for data that does not survive a reboot: pods/, netns/ and, for an own containerd,
	// containerd/ with its socket. Absolute, and at most 70 bytes long, because the path of a socket has at most 107.
	// Required.
	RunDir string
	// PodAddresses is the range of the pods' addresses (IPv4). Required.
	PodAddresses netip.Prefix
	// ReadyNetworks is the number of pod networks kept ready for the next wakes. Negative: none. Default: 2.
	ReadyNetworks int
	// ReadyContainers is the number of services whose next container is created ahead, the most recently used first.
	// Such a container is a record in containerd and a folder, without a process. Negative: none. Default: 16.
	ReadyContainers int
	// MTU of the pods' devices, in bytes. Default: 1500.
	MTU int
	// InsecureRegistries are registries accessed over plain HTTP: "host", "host:port", or a range such as "10.46.0.0/16"
	// for registries named by address. localhost and 127.0.0.0/8 always are.
	InsecureRegistries []string
	// Snapshotter is containerd's snapshotter for images and the layers of containers, except for lazy pulls, which
	// have another. New fails if containerd cannot use it. Default: DefaultSnapshotter, which is not checked.
	Snapshotter string
	// Optimise rewrites an image for spec.imagePull.optimise, and returns the digest of the result. Without it,
	// spec.imagePull.optimise has no effect.
	Optimise func(context.Context, Optimisation) (digest.Digest, error)
	// Forward makes the kernel forward packets from pods to other networks.
	Forward bool
	// Names is the name server of pods. Without one, pods use the machine's name servers.
	Names Names
	// Log receives events, and failures that no call returns. Default: slog.Default().
	Log *slog.Logger
}

const maxRunDir = 70

// snapshotter is Snapshotter or its default.
func (c Config) snapshotter() string { return cmp.Or(c.Snapshotter, DefaultSnapshotter) }

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.RunDir) {
		return c, fmt.Errorf("state folder %q and run folder %q: write absolute paths", c.StateDir, c.RunDir)
	}
	c.StateDir, c.RunDir = filepath.Clean(c.StateDir), filepath.Clean(c.RunDir)
	if len(c.RunDir) > maxRunDir {
		return c, fmt.Errorf("run folder %s: its path has %d bytes, at most %d are possible", c.RunDir, len(c.RunDir),
			maxRunDir)
	}
	if !c.PodAddresses.IsValid() || !c.PodAddresses.Addr().Is4() || c.PodAddresses.Bits() > 30 {
		return c, fmt.Errorf("pod addresses %v: write an IPv4 range of /30 or larger", c.PodAddresses)
	}
	if c.Containerd == "" {
		c.Containerd = Auto
	}
	if c.Containerd != Auto && c.Containerd != Owned && !filepath.IsAbs(c.Containerd) {
		return c, fmt.Errorf("containerd %q: write auto, own or the absolute path of a socket", c.Containerd)
	}
	if c.Namespace == "" {
		c.Namespace = DefaultNamespace
	}
	if c.Instance == "" {
		c.Instance = hash8(c.RunDir)
	}
	if !validInstance(c.Instance) {
		return c, fmt.Errorf("instance %q: write 1 to 32 letters, digits and hyphens", c.Instance)
	}
	setDefault(&c.ReadyNetworks, 2)
	setDefault(&c.ReadyContainers, 16)
	setDefault(&c.MTU, 1500)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c, nil
}

func setDefault(field *int, value int) {
	switch {
	case *field == 0:
		*field = value
	case *field < 0:
		*field = 0
	}
}

func validInstance(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-') {
			return false
		}
	}
	return s != "" && len(s) <= 32
}

// Names is a name server in the networks of pods.
type Names interface {
	// Attach and Detach open and close the server in a network. Assign says in which namespace the network's pod is.
	Attach(podnet.Network) error
	Detach(network string)
	Assign(network, namespace string)
	// ResolvConf returns the resolv.conf of a pod in a namespace.
	ResolvConf(namespace string) []byte
}

// DevicePrefix starts the names of the devices of pods: 7 of the 15 bytes of a name. "wv" is the prefix of no other
// program's devices; firewalls may trust those that start with "wg" as WireGuard's.
func (c Config) DevicePrefix() string { return "wv" + c.deviceHash() }

// FormerDevicePrefix is the DevicePrefix of earlier versions.
func (c Config) FormerDevicePrefix() string { return "wg" + c.deviceHash() }

func (c Config) deviceHash() string {
	return hash8(cmp.Or(c.Instance, hash8(filepath.Clean(c.RunDir))))[:5]
}

// cgroup is the path of the parent of the pods' cgroups, in every hierarchy.
func (c Config) cgroup() string { return "/wangell-" + c.Instance }

// podCgroup is the path of the cgroup of a pod, in every hierarchy.
func (c Config) podCgroup(id string) string { return filepath.Join(c.cgroup(), id) }

func (c Config) logDir() string { return filepath.Join(c.StateDir, "logs") }

// initFile is the first process of containers with spec.init. It is not in RunDir, because many machines mount /run
// noexec.
func (c Config) initFile() string { return filepath.Join(c.StateDir, "init") }

// waitFile is the first process of containers of prepared pods.
func (c Config) waitFile() string { return filepath.Join(c.StateDir, "wait") }

func (c Config) podsDir() string { return PodsDir(c.RunDir) }

// PodsDir is the folder with a folder for each pod, in the run folder dir.
func PodsDir(dir string) string { return filepath.Join(dir, "pods") }

// emptyDirs has the emptyDir volumes on disk, in a folder for each pod. It is not in RunDir, which many machines keep
// in memory and mount noexec.
func (c Config) emptyDirs() string { return filepath.Join(c.StateDir, "emptydirs", c.Instance) }

func (c Config) netnsDir() string { return filepath.Join(c.RunDir, "netns") }

func (c Config) podDir(id string) string { return filepath.Join(c.podsDir(), id) }

// netnsLink is a symbolic link to the network namespace of a pod. It lets a container be created before its network is
// chosen.
func (c Config) netnsLink(id string) string { return filepath.Join(c.podDir(id), "netns") }

// wokenFile has the time at which the program of a prepared pod was started, as a monotime.Time.
func (c Config) wokenFile(id string) string { return filepath.Join(c.podDir(id), "woken") }

// logFile is the log of a service: one file that all its pods append to.
func (c Config) logFile(k v1alpha1.Key) string {
	return filepath.Join(c.logDir(), strings.ReplaceAll(string(k), "/", "_")+".log")
}

// runcRoot is where runc keeps the state of running containers.
func (c Config) runcRoot() string { return filepath.Join(c.RunDir, "runc") }

// runcStates is the folder in runcRoot that the shims give to runc: one for each containerd namespace.
func (c Config) runcStates() string { return filepath.Join(c.runcRoot(), c.Namespace) }

// OwnRoot is the folder of an own containerd for images and containers, in the state folder dir.
func OwnRoot(dir string) string { return filepath.Join(dir, "containerd") }

// OwnSocket is the socket of an own containerd, in the run folder dir.
func OwnSocket(dir string) string { return filepath.Join(dir, "containerd", "containerd.sock") }

func hash8(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}

// snapshotterRoot is the folder of a snapshotter of an own containerd, in the state folder dir.
func snapshotterRoot(dir, snapshotter string) string {
	return filepath.Join(OwnRoot(dir), snapshotterPlugin+"."+snapshotter)
}

// Optimisation is an image to rewrite so that the parts that its service reads first come first.
type Optimisation struct {
	// Source names the image by its digest, Destination the result by a tag of the same repository.
	Source, Destination string
	// Root is the folder of the snapshotter with the recordings of first reads.
	Root string
}

// Labels of a container.
const (
	labelInstance    = "wangell.loutres.me/instance"
	labelService     = "wangell.loutres.me/service"
	labelSpecHash    = "wangell.loutres.me/spec-hash"
	labelImageDigest = "wangell.loutres.me/image-digest"
	labelSnapshotter = "wangell.loutres.me/snapshotter" // only in what instanceContainers returns
	labelStopSignal  = "wangell.loutres.me/stop-signal"
	labelKeeps       = "wangell.loutres.me/keeps"    // the pod holds volumes of its images
	labelPrepared    = "wangell.loutres.me/prepared" // its first process waits before it becomes the program
	// Labels of containers beside the main one.
	labelPod       = "wangell.loutres.me/pod"
	labelContainer = "wangell.loutres.me/container"
	labelKind      = "wangell.loutres.me/kind"
)

const runtimeName = "io.containerd.runc.v2"

// maxID is containerd's limit for the length of an identifier, in bytes.
const maxID = 76

// newPodID returns a new unique ID: NAME-RANDOM, with the name cut to what containerd allows.
func newPodID(k v1alpha1.Key) string {
	var random [podSuffix / 2]byte
	_, _ = rand.Read(random[:])
	_, name := k.Split()
	suffix := "-" + hex.EncodeToString(random[:])
	return strings.TrimRight(name[:min(len(name), maxID-len(suffix))], "-.") + suffix
}

// hostname is the service's name, cut to the limit of sethostname(2).
func hostname(k v1alpha1.Key) string {
	_, name := k.Split()
	return name[:min(len(name), 64)] // sethostname(2)
}

// podSuffix is the length of the random end of a pod's ID, in bytes.
const podSuffix = 12
