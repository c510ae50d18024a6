// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the built program as users run it: wangell up in the network namespace of a node, with real
// containers, and clients in their own network namespaces.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/machine/instance"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// serverTag is the image of the tests' own server; otherTag is one whose VERSION is "of the image".
const (
	serverTag = "wangell.local/e2e:v1"
	otherTag  = "wangell.local/e2e:v2"
)

// Shared by all tests.
var (
	program     string   // the program under test
	folder      string   // for all files of this run
	sharedState string   // a state folder with images, used by one test at a time
	serverImage v1.Image // the tests' own server, for registries
)

func TestMain(m *testing.M) {
	need.RootMain("end-to-end tests")
	if signal.Ignored(syscall.SIGHUP) { // by nohup(1), under which the tested commands must not run as well
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	os.Exit(run(m))
}

// run runs all tests and checks what they leave behind.
func run(m *testing.M) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "end-to-end tests:", err)
		return 1
	}
	var err error
	if folder, err = os.MkdirTemp("", "wge2e-"); err != nil {
		return fail(err)
	}
	defer func() {
		if err := os.RemoveAll(folder); err != nil {
			code = fail(err)
		}
	}()
	if err := prepare(); err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := nothingLeftInContainerd(); err != nil {
		return fail(err)
	}
	return code
}

// prepare builds the program, unless WANGELL_BIN names one, and the server's images.
func prepare() error {
	sharedState = filepath.Join(folder, "state")
	server := filepath.Join(folder, "server")
	if err := e2e.GoBuild(e2e.ServerPackage, server); err != nil {
		return err
	}
	var err error
	if program, err = e2e.Wangell(folder); err != nil {
		return err
	}
	code, err := serverFile()
	if err != nil {
		return err
	}
	spec := image.Spec{Files: map[string]image.File{"/server": {Data: code, Mode: 0o755}}, Entrypoint: []string{"/server"},
		User: "65532:65532"}
	if serverImage, err = image.Build(spec); err != nil {
		return err
	}
	spec.Env = []string{"VERSION=of the image"}
	other, err := image.Build(spec)
	if err != nil {
		return err
	}
	return errors.Join(loadImage(serverTag, serverImage), loadImage(otherTag, other))
}

// loadImage loads an image into the shared state folder, with wangell image load.
func loadImage(tag string, img v1.Image) error {
	tarball := filepath.Join(folder, "image.tar")
	defer os.Remove(tarball)
	if err := image.WriteFile(tarball, tag, img); err != nil {
		return err
	}
	cmd := exec.Command(program, "image", "load", tarball, "--run-dir", filepath.Join(folder, "load"), "--state-dir",
		sharedState, "--containerd", "own")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("image load %s: %w: %s", tag, err, out)
	}
	return nil
}

// nothingLeftInContainerd returns an error for everything in the shared containerd except images and their snapshots.
func nothingLeftInContainerd() error {
	config := instance.Config{
		RunDir: filepath.Join(folder, "look"), StateDir: sharedState, Containerd: instance.ContainerdOwn, XDPMode: "auto",
		Addresses: instance.DefaultAddresses, PodAddresses: instance.DefaultPodAddresses,
	}
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Patience)
	defer cancel()
	err := instance.WithContainerd(ctx, config, slog.New(slog.DiscardHandler), func(c *client.Client, _ string) error {
		containers, err := c.ContainerService().List(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for _, found := range containers {
			errs = append(errs, fmt.Errorf("container %s is left in containerd", found.ID))
		}
		walk := c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, s snapshots.Info) error {
			if s.Kind != snapshots.KindCommitted {
				errs = append(errs, fmt.Errorf("snapshot %s is left in containerd", s.Name))
			}
			return nil
		})
		return errors.Join(append(errs, walk)...)
	})
	if _, statErr := os.Stat(config.RunDir); !errors.Is(statErr, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("%s is left", config.RunDir))
	}
	return err
}

// serverFile returns the program of the server.
func serverFile() ([]byte, error) { return os.ReadFile(filepath.Join(folder, "server")) }
