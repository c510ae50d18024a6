// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	ctd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/image-spec/identity"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/runtime/containerd"
)

// scratchSize is the size of the file system of a snapshot by blockfile, in bytes.
const scratchSize = 2 << 30

// snapshot is a writable snapshot of an image, by a snapshotter of a containerd of its own.
type snapshot struct {
	// root is where it is mounted.
	root string

	dir     string
	unmount func() error // nil: nothing is mounted
	process *process.Process
	client  *ctd.Client
}

const snapshotConfig = `version = 2
root = %[1]q
state = %[2]q
disabled_plugins = [` + containerd.PluginsOfCRI + `
]
[grpc]
  address = %[3]q
[ttrpc]
  address = "%[3]s.t"
[debug]
  level = "warn"
`

// blockfileConfig is added only for blockfile: without its file the plugin fails, and with it everything that needs
// snapshotters.
const blockfileConfig = `[plugins."io.containerd.snapshotter.v1.blockfile"]
  scratch_file = %q
  fs_type = "ext4"
`

// newSnapshot starts a containerd, unpacks the image of a server with a snapshotter, and mounts a snapshot.
func newSnapshot(
	ctx context.Context, program, dir, snapshotter string, of server, images built,
) (_ *snapshot, err error) {
	s := &snapshot{root: filepath.Join(dir, "root"), dir: filepath.Join(dir, "c")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("snapshotter %s of %s: %w", snapshotter, program, err), s.close())
		}
	}()
	if err := errors.Join(os.Mkdir(s.root, 0o755), os.Mkdir(s.dir, 0o711)); err != nil {
		return nil, err
	}
	if err := s.start(ctx, program, snapshotter); err != nil {
		return nil, err
	}
	if err := s.importImage(ctx, of, images); err != nil {
		return nil, err
	}
	img, err := s.client.GetImage(ctx, of.recipe.Tag())
	if err != nil {
		return nil, err
	}
	if err := img.Unpack(ctx, snapshotter); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	layers, err := img.RootFS(ctx)
	if err != nil {
		return nil, err
	}
	mounts, err := s.client.SnapshotService(snapshotter).Prepare(ctx, snapshotName, identity.ChainID(layers).String(),
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)}))
	if err != nil {
		return nil, err
	}
	s.unmount, err = containerd.MountSnapshot(ctx, s.client, snapshotName, mounts, s.root)
	return s, err
}

// snapshotName is the name of the snapshot, and of its mounts.
const snapshotName = "lab"

// start starts containerd, and connects to it.
func (s *snapshot) start(ctx context.Context, program, snapshotter string) error {
	socket, config := filepath.Join(s.dir, "s"), filepath.Join(s.dir, "config.toml")
	text := fmt.Sprintf(snapshotConfig, filepath.Join(s.dir, "root"), filepath.Join(s.dir, "state"), socket)
	if snapshotter == "blockfile" {
		scratch := filepath.Join(s.dir, "scratch")
		if err := makeScratch(ctx, scratch); err != nil {
			return err
		}
		text += fmt.Sprintf(blockfileConfig, scratch)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, "--config", config)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.process, err = process.StartBound(cmd); err != nil {
		return err
	}
	if s.client, err = ctd.New(socket, ctd.WithDefaultNamespace("lab")); err != nil {
		return err
	}
	var missing error
	err = until(ctx, func() error {
		select {
		case <-s.process.Ended():
			return fmt.Errorf("it ended: %w", s.process.Err())
		default:
		}
		err := s.offers(ctx, snapshotter)
		if errors.Is(err, errNoSnapshotter) { // it will not get one later
			missing, err = err, nil
		}
		return err
	})
	return errors.Join(err, missing)
}

var errNoSnapshotter = errors.New("this containerd does not have it")

// offers returns why containerd does not offer a snapshotter.
func (s *snapshot) offers(ctx context.Context, snapshotter string) error {
	found, err := s.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter)
	switch {
	case err != nil:
		return err
	case len(found.Plugins) == 0:
		return errNoSnapshotter
	case found.Plugins[0].InitErr != nil:
		return errors.New(found.Plugins[0].InitErr.Message)
	}
	return nil
}

// makeScratch makes the file system that blockfile copies for each snapshot.
func makeScratch(ctx context.Context, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(scratchSize), f.Close()); err != nil {
		return err
	}
	_, err = output(exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", file))
	return err
}

// importImage imports the image of a server into containerd.
func (s *snapshot) importImage(ctx context.Context, of server, images built) error {
	file := filepath.Join(s.dir, "image.tar")
	if err := image.WriteFile(file, of.recipe.Tag(), images[of.recipe.Name]); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	_, err = image.Import(ctx, s.client, "", "", f)
	return errors.Join(err, f.Close(), os.Remove(file))
}

// close unmounts the snapshot and stops containerd. Its folder goes with its disk.
func (s *snapshot) close() error {
	var errs []error
	if s.unmount != nil {
		errs = append(errs, s.unmount())
	}
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.process != nil {
		errs = append(errs, s.process.Stop(30*time.Second))
		s.process.Close()
	}
	return errors.Join(errors.Join(errs...), containerd.UnmountBelow(s.dir))
}
