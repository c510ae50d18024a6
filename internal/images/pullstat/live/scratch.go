// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/platforms"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/base/tempdir"
	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/runtime/containerd"
)

// Limits of a throw-away containerd.
const (
	answerIn = 60 * time.Second // its first answer
	stopIn   = 10 * time.Second // between SIGTERM and SIGKILL
)

// namespace is the one that the CRI plugin uses; without it any would do.
const namespace = "k8s.io"

// systemHosts are the settings of the machine's registries, which the CRI plugin reads.
const systemHosts = "/etc/containerd/certs.d"

// scratch is a containerd with a folder of its own; close ends both.
type scratch struct {
	dir         *tempdir.Dir
	proc        *process.Process
	client      *client.Client
	snapshotter string
	maker       erofs.Maker // if the snapshotter is erofs
}

// scratchConfig is a configuration in version 2, which containerd 1.3 to 2.x read. Records of level debug, in JSON,
// have the times of pulls. What an image pull does not need is disabled, so that nothing outside of the folder is
// touched.
const scratchConfig = `version = 2
root = %q
state = %q
disabled_plugins = [%s` + containerd.SparePlugins + `
]
[grpc]
  address = %q
[ttrpc]
  address = %q
[debug]
  level = "debug"
  format = "json"
`

// withCRI are the settings of the CRI plugin. It has one folder of registries: containerd 2 takes a list, as 1.x does,
// but hands it to the transfer service, which takes it for one name.
const withCRI = `
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %q
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = %q
    bin_dir = %q
`

// withTransfer begins the settings of the transfer service, which pulls for the CRI plugin of containerd 2.
const withTransfer = `
[plugins."io.containerd.transfer.v1.local"]
`

// startScratch starts a containerd with a new folder, and returns once it answers. Its CRI plugin, if there is one,
// uses HTTP for the registries in plain.
func startScratch(ctx context.Context, o Options, plain []string) (_ *scratch, err error) {
	path, err := exec.LookPath(o.Program)
	if err != nil {
		return nil, fmt.Errorf("%s is not in $PATH: apt install containerd, or name it with --containerd-program", o.Program)
	}
	dir, err := tempdir.Make(o.Dir, "wangell-analyse-", func(dir string) error {
		return errors.Join(containerd.UnmountBelow(dir), os.RemoveAll(dir))
	})
	if err != nil {
		return nil, fmt.Errorf("a throw-away containerd: %w", err)
	}
	s := &scratch{dir: dir, snapshotter: o.snapshotter()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if len(s.socket()) > 100 {
		return nil, fmt.Errorf("folder %s: its path is too long for a socket: use a shorter one", o.Dir)
	}
	if err := s.writeConfig(ctx, o, plain); err != nil {
		return nil, fmt.Errorf("configure a throw-away containerd: %w", err)
	}
	log, err := os.Create(s.logFile())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	argv := []string{path, "--config", s.path("config.toml")}
	if o.Namespace != "" {
		argv = append([]string{"nsenter", "--net=" + o.Namespace, "--"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.Env = append(os.Environ(), "TMPDIR="+s.path("tmp"), "PATH="+o.path())
	// A process group of its own: Ctrl-C is for this program, which stops containerd in its turn.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.proc, err = process.StartBound(cmd); err != nil {
		return nil, fmt.Errorf("start a throw-away containerd: %w", err)
	}
	if s.client, err = client.New(s.socket(), client.WithDefaultNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("throw-away containerd: %w", err)
	}
	return s, s.await(ctx)
}

func (s *scratch) path(name ...string) string {
	return filepath.Join(append([]string{s.dir.Path}, name...)...)
}

func (s *scratch) socket() string { return s.path("containerd.sock") }

func (s *scratch) logFile() string { return s.path("log") }

// blob returns the file of a blob, given its digest as ALGORITHM:HEX.
func (s *scratch) blob(digest string) string {
	algorithm, hex, _ := strings.Cut(digest, ":")
	return s.path("root", "io.containerd.content.v1.content", "blobs", algorithm, hex)
}

func (s *scratch) writeConfig(ctx context.Context, o Options, plain []string) error {
	if err := os.Mkdir(s.path("tmp"), 0o700); err != nil {
		return err
	}
	disabled, more := containerd.PluginsOfCRI, ""
	if o.Via == ViaCRI {
		disabled = ""
		more = fmt.Sprintf(withCRI, s.path("hosts"), s.path("cni"), s.path("cni"))
	}
	if o.Unpackers > 1 || o.Downloads > 0 {
		more += withTransfer
	}
	if o.Unpackers > 1 {
		more += fmt.Sprintf("  max_concurrent_unpacks = %d\n", o.Unpackers)
	}
	if o.Downloads > 0 {
		more += fmt.Sprintf("  max_concurrent_downloads = %d\n", o.Downloads)
	}
	if o.snapshotter() == erofs.Snapshotter {
		version, err := containerd.ProgramVersion(ctx, o.Program)
		if err != nil {
			return err
		}
		if !erofs.Supported(version) {
			return fmt.Errorf("%s %s cannot unpack for the snapshotter erofs: use 2.2.3 or later, or overlayfs", o.Program,
				version)
		}
		if s.maker, err = erofs.Find(ctx, o.path()); err != nil {
			return err
		}
		more += s.maker.Config() + erofs.ConfigOfCRI(platforms.Format(platforms.DefaultSpec()))
	}
	if err := s.writeHosts(plain); err != nil {
		return err
	}
	text := fmt.Sprintf(scratchConfig, s.path("root"), s.path("state"), disabled, s.socket(), s.socket()+".ttrpc") +
		more + o.Config
	return os.WriteFile(s.path("config.toml"), []byte(text), 0o600)
}

// writeHosts makes the folder of registries: the machine's settings, and HTTP for those in plain.
func (s *scratch) writeHosts(plain []string) error {
	if err := os.Mkdir(s.path("hosts"), 0o700); err != nil {
		return err
	}
	known, err := os.ReadDir(systemHosts)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, k := range known {
		if slices.Contains(plain, k.Name()) {
			continue
		}
		if err := os.Symlink(filepath.Join(systemHosts, k.Name()), s.path("hosts", k.Name())); err != nil {
			return err
		}
	}
	for _, host := range plain {
		dir := s.path("hosts", host)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		// containerd 1.6 takes the scheme of a server only from its host section.
		server := url.URL{Scheme: "http", Host: host}
		text := fmt.Sprintf("server = %q\n[host.%[1]q]\n", server.String())
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// await returns once containerd answers.
func (s *scratch) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	for {
		_, err := s.client.Version(ctx)
		if err == nil {
			return nil
		}
		// The kernel has no event for a Unix socket that begins to listen.
		select {
		case <-s.proc.Ended():
			last := containerd.LastLine(s.logFile(), 0)
			return fmt.Errorf("throw-away containerd exited (%v); its log ends with: %s", s.proc.Err(), last)
		case <-ctx.Done():
			return fmt.Errorf("throw-away containerd does not answer: %w", err)
		case <-time.After(pollEach):
		}
	}
}

// stop stops containerd. Its folder stays.
func (s *scratch) stop() error {
	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close())
		s.client = nil
	}
	if s.proc != nil {
		errs = append(errs, s.proc.Stop(stopIn))
		s.proc = nil
	}
	return errors.Join(errs...)
}

// close stops containerd and removes its folder, after everything that is mounted in it.
func (s *scratch) close() error {
	if err := errors.Join(s.stop(), s.dir.Remove()); err != nil {
		return fmt.Errorf("remove the throw-away containerd in %s: %w", s.dir.Path, err)
	}
	return nil
}
