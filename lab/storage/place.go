// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab/onenode"
	"wangell.loutres.me/test/testutil/netlab"
)

// place is where an application runs.
type place interface {
	// client returns where its clients are, and the addresses of its servers.
	client() client
	close() error
}

// asServices runs the servers as services of an instance of Wangell.
type asServices struct {
	*onenode.Instance
	servers []netip.AddrPort
}

func newServices(
	ctx context.Context, p Params, dir string, c Case, servers []server, images built,
) (_ place, err error) {
	i, err := onenode.NewInstanceIn(dir, p.Wangell, netlab.Config{})
	if err != nil {
		return nil, err
	}
	i.Env = p.env()
	s := &asServices{Instance: i}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	var manifests []byte
	loaded := map[string]bool{}
	for _, server := range servers {
		if name := server.recipe.Name; !loaded[name] {
			loaded[name] = true
			file := filepath.Join(dir, "image.tar")
			err := image.WriteFile(file, server.recipe.Tag(), images[name])
			if err == nil {
				err = errors.Join(i.LoadImage(ctx, file), os.Remove(file))
			}
			if err != nil {
				return nil, err
			}
		}
		m, err := manifest(c, server)
		if err != nil {
			return nil, err
		}
		manifests = append(append(manifests, "---\n"...), m...)
	}
	if err := i.Start(ctx, manifests); err != nil {
		return nil, err
	}
	for _, server := range servers {
		if err := i.AwaitImage(ctx, server.recipe.Tag(), 5*time.Minute); err != nil {
			return nil, err
		}
		a, err := i.AddressOf(ctx, server.name)
		if err != nil {
			return nil, err
		}
		s.servers = append(s.servers, a)
	}
	return s, nil
}

func (s *asServices) client() client { return client{ns: s.Net.Client(), servers: s.servers} }

func (s *asServices) close() error { return s.Close() }

// manifest is the manifest of a server.
func manifest(c Case, s server) ([]byte, error) {
	var env []map[string]string
	for _, e := range environment(s) {
		env = append(env, map[string]string{"name": e[0], "value": e[1]})
	}
	spec := map[string]any{"image": s.recipe.Tag(), "port": s.port, "targetPort": s.port, "idleTimeout": 3600,
		"wakeTimeout": 300, "env": env}
	if c.Volume && s.data != "" {
		spec["volumes"] = []any{map[string]any{"name": "data", "persistent": map[string]any{}}}
		spec["volumeMounts"] = []any{map[string]any{"name": "data", "mountPath": s.data}}
	}
	limits := map[string]string{}
	if c.CPU != "" {
		limits["cpu"] = c.CPU
	}
	if c.Memory != "" {
		limits["memory"] = c.Memory
	}
	if len(limits) > 0 {
		spec["resources"] = map[string]any{"limits": limits}
	}
	return yaml.Marshal(map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.Kind,
		"metadata": map[string]string{"name": s.name}, "spec": spec})
}

// environment is the environment of a server, in order.
func environment(s server) (env [][2]string) {
	for name, value := range s.env {
		env = append(env, [2]string{name, value})
	}
	slices.SortFunc(env, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	return env
}

// directly runs a server without a container: the image's files in a folder, by chroot(1), in the network namespace
// of the node. Its mount and PID namespaces only serve to end everything with it.
type directly struct {
	net     *netlab.Net
	process *process.Process
	stdin   io.Closer // closing it ends the shell, the first process of its namespace, and so all others
	address netip.AddrPort
	log     *os.File
	cleanUp func() error
}

func newDirectly(ctx context.Context, dir string, s server, images built) (place, error) {
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	files := mutate.Extract(images[s.recipe.Name])
	defer files.Close()
	tar := exec.CommandContext(ctx, "tar", "-x", "-p", "--numeric-owner", "-C", root)
	tar.Stdin = io.Reader(files)
	if _, err := output(tar); err != nil {
		return nil, err
	}
	return startDirectly(dir, root, s, nil)
}

// newOnSnapshot is newDirectly with the image's files in a snapshot, by the first containerd that has the snapshotter.
func newOnSnapshot(
	ctx context.Context, programs []string, dir, snapshotter string, s server, images built,
) (place, error) {
	var errs []error
	for i, program := range programs {
		of := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(of, 0o755); err != nil {
			return nil, err
		}
		snapshot, err := newSnapshot(ctx, program, of, snapshotter, s, images)
		if err == nil {
			return startDirectly(of, snapshot.root, s, snapshot.close)
		}
		errs = append(errs, err)
		if !errors.Is(err, errNoSnapshotter) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// startDirectly starts a server in the folder root. cleanUp, which may be nil, is called after its end.
func startDirectly(dir, root string, s server, cleanUp func() error) (_ place, err error) {
	d := &directly{cleanUp: cleanUp}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	if d.net, err = netlab.New(netlab.Config{}); err != nil {
		return nil, err
	}
	d.address = netip.AddrPortFrom(d.net.Node.Addr, uint16(s.port))
	argv := []string{"unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
		`mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && { "$@" & read _; }`, root, "chroot"}
	if s.recipe.User != "" {
		argv = append(argv, "--userspec="+s.recipe.User)
	}
	cmd := d.net.Node.Command(context.Background(), append(append(argv, root), s.recipe.Entrypoint...)...) // close ends it
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, e := range environment(s) {
		cmd.Env = append(cmd.Env, e[0]+"="+e[1])
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = d.log, d.log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if d.process, err = process.StartBound(cmd); err != nil {
		return nil, fmt.Errorf("start %s directly: %w", s.name, err)
	}
	return d, nil
}

func (d *directly) client() client {
	return client{ns: d.net.Client(), servers: []netip.AddrPort{d.address}}
}

func (d *directly) close() error {
	var errs []error
	if d.process != nil {
		errs = append(errs, d.stdin.Close())
		<-d.process.Ended()
		d.process.Close()
	}
	if d.net != nil {
		errs = append(errs, d.net.Close())
	}
	if d.log != nil {
		errs = append(errs, d.log.Close())
	}
	if d.cleanUp != nil {
		errs = append(errs, d.cleanUp())
	}
	return errors.Join(errs...)
}
