// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/api/v1alpha1"
)

const (
	// hangupPatience is the time between SIGHUP and SIGKILL for a command whose caller is gone.
	hangupPatience = 5 * time.Second
	// hangupLimit bounds the end of such a command, which waits for its start if that is going on.
	hangupLimit = time.Minute
)

// PipesDir is the folder of the pipes of commands in pods, in the run folder dir.
func PipesDir(dir string) string { return filepath.Join(dir, "exec") }

// commandPrefix begins the IDs of commands of Attach.
const commandPrefix = "exec-"

var commandID = regexp.MustCompile("^" + commandPrefix + "[0-9a-f]{16}$")

// IsCommandID reports whether a text may be from NewCommandID.
func IsCommandID(s string) bool { return commandID.MatchString(s) }

// EndCommand ends the command with an ID that another process attached to in a pod of a service, once that process is
// gone: the command and its children get SIGHUP, and after five seconds SIGKILL. What has ended already is not an
// error.
func (r *Runtime) EndCommand(k v1alpha1.Key, id string) error {
	if !IsCommandID(id) {
		return fmt.Errorf("service %s: end command: %q is no ID of a command", k, id)
	}
	ctx, cancel := context.WithTimeout(r.ctx, hangupLimit)
	defer cancel()
	pipes, err := inheritPipes(PipesDir(r.cfg.RunDir), id)
	if err != nil {
		return fmt.Errorf("service %s: end command: %w", k, err)
	}
	var errs []error
	for _, pod := range r.podsOf(k) {
		for _, container := range r.containersOf(pod) {
			errs = append(errs, endCommand(ctx, r.client, container, id))
		}
	}
	if err := errors.Join(append(errs, pipes.remove())...); err != nil {
		return fmt.Errorf("service %s: end command: %w", k, err)
	}
	return nil
}

// podsOf returns the IDs of the pods of a service.
func (r *Runtime) podsOf(k v1alpha1.Key) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.pods {
		if p.Service == k {
			ids = append(ids, id)
		}
	}
	return ids
}

// endCommand ends a command in a container, and removes its record. It may be just about to start: then containerd
// answers late or not at all, and does not remove the record of what has begun to run meanwhile.
func endCommand(ctx context.Context, c *client.Client, container, id string) error {
	for {
		err := absent(tryEndCommand(ctx, c, container, id))
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryEvery):
		}
	}
}

// tryEndCommand is one attempt of endCommand.
func tryEndCommand(ctx context.Context, c *client.Client, container, id string) error {
	service := c.TaskService()
	got, err := service.Get(ctx, &tasks.GetRequest{ContainerID: container, ExecID: id})
	if err != nil {
		return err
	}
	if s := got.Process.Status; got.Process.Pid != 0 && s != task.Status_STOPPED {
		if err := (session{c, container, got.Process.Pid}).end(ctx, hangupPatience); err != nil {
			return err
		}
		if _, err := service.Wait(ctx, &tasks.WaitRequest{ContainerID: container, ExecID: id}); err != nil {
			return err
		}
	}
	_, err = service.DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: container, ExecID: id})
	return err
}

// pipes are those of a command whose caller is gone. The shim waits for a reader of its output before it reports the
// PID of a command that starts, and without one the command could not be ended.
type pipes struct {
	dirs []string
	open []*os.File
}

// inheritPipes begins to read and forget the output of a command. It finds no pipes if its caller has removed them.
func inheritPipes(dir, id string) (*pipes, error) {
	p := &pipes{}
	for _, stream := range []string{"stdout", "stderr"} {
		files, err := filepath.Glob(filepath.Join(dir, "*", id+"-"+stream))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			p.dirs = append(p.dirs, filepath.Dir(file))
			// With O_RDWR neither this call waits for a writer, nor a later one of the shim for a reader.
			f, err := os.OpenFile(file, os.O_RDWR|unix.O_NONBLOCK, 0)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, errors.Join(err, p.remove())
			}
			p.open = append(p.open, f)
			go func() { _, _ = io.Copy(io.Discard, f) }() // until remove closes it
		}
	}
	return p, nil
}

// remove closes the pipes and removes their folder.
func (p *pipes) remove() error {
	var errs []error
	for _, f := range p.open {
		errs = append(errs, f.Close())
	}
	for _, dir := range p.dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
