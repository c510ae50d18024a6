// SPDX-License-Identifier: Apache-2.0

// Package containerd runs pods through containerd and runc on one machine: each pod is one container
// with a network namespace of package podnet. It speaks to a containerd that runs already, or keeps
// one of its own.
package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
)

// The values of Config.Containerd beside the path of a socket.
const (
	// Auto uses SystemSocket if a containerd answers there, and Owned otherwise.
	Auto = "auto"
	// Owned starts a containerd that belongs to this instance, or uses the one an earlier process started.
	Owned = "own"
)

// SystemSocket is where a containerd that the machine runs listens.
const SystemSocket = "/run/containerd/containerd.sock"

// DefaultNamespace is the containerd namespace of Config.Namespace's default.
const DefaultNamespace = "wangell"

// Config says what a Runtime works with. The zero value of a field that is not required means its default.
type Config struct {
	// Containerd is Auto, Owned or the path of a socket. Default: Auto.
	Containerd string
	// Namespace is the containerd namespace in which images and containers are. Default: DefaultNamespace.
	Namespace string
	// Instance tells the pods of several instances on one machine apart: it is in labels, cgroup paths and device
	// names; at most 32 letters, digits and hyphens. Default: 8 hex digits of the SHA-256 of RunDir.
	Instance string
	// StateDir keeps what outlives the machine's restart: logs/ and, for an own containerd, containerd/ with the
	// images. Absolute. Required.
	StateDir string
	// RunDir keeps what does not: pods/, netns/ and, for an own containerd, containerd/ with its socket. Absolute, at most 70
	// bytes long, because the path of a socket has at most 107. Required.
	RunDir string
	// PodAddresses is the range of the pods' addresses (IPv4). Required.
	PodAddresses netip.Prefix
	// ReadyNetworks is how many pod networks are kept ready for the next wakes. Negative: none. Default: 2.
	ReadyNetworks int
	// ReadyContainers is for how many services, those used last, the next container is kept created: a record in
	// containerd and a folder, no process. Negative: none. Default: 16.
	ReadyContainers int
	// MTU of the pods' devices, in bytes. Default: 1500.
	MTU int
	// InsecureRegistries are registries spoken to in plain HTTP: "host", "host:port" or a range such as "10.46.0.0/16"
	// for those named by address. localhost and 127.0.0.0/8 always are.
	InsecureRegistries []string
	// Log receives what a user should know that no call returns. Default: slog.Default().
	Log *slog.Logger
}

const maxRunDir = 70

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.RunDir) {
		return c, fmt.Errorf("state folder %q and run folder %q: write absolute paths", c.StateDir, c.RunDir)
	}
	c.StateDir, c.RunDir = filepath.Clean(c.StateDir), filepath.Clean(c.RunDir)
	if len(c.RunDir) > maxRunDir {
		return c, fmt.Errorf("run folder %s: its path has %d bytes, at most %d are possible", c.RunDir, len(c.RunDir), maxRunDir)
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

// devicePrefix begins the names of the instance's devices: 7 of the 15 bytes that a name may have.
func (c Config) devicePrefix() string { return "wg" + hash8(c.Instance)[:5] }

// cgroup is the parent of the pods' cgroups, in every hierarchy.
func (c Config) cgroup() string { return "/wangell-" + c.Instance }

func (c Config) logDir() string  { return filepath.Join(c.StateDir, "logs") }
func (c Config) podsDir() string { return filepath.Join(c.RunDir, "pods") }

// OwnRoot is the folder in which an own containerd keeps images and containers, below state folder dir.
func OwnRoot(dir string) string { return filepath.Join(dir, "containerd") }

// OwnSocket is the socket of an own containerd, below run folder dir.
func OwnSocket(dir string) string { return filepath.Join(dir, "containerd", "containerd.sock") }

func hash8(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}
