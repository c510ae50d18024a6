// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/text"
)

// Want is the volume that a pod needs.
type Want struct {
	ID
	// SizeBytes is its size; 0 for a folder without a limit.
	SizeBytes int64
	// Service is the pod's service, as NAMESPACE/NAME.
	Service string
	// UID and GID own a volume that is made.
	UID, GID int
	// Fill makes the folder that pods see of a volume that is made, in place of an empty one, with its content. It may
	// be nil.
	Fill func(dir string) error
}

// Hold ensures that a volume exists and is mounted until the pod releases it. The pod's folder must exist. While the
// volume is being backed up, Hold waits, at most until ctx ends. Release is needed after an error as well.
func (s *Store) Hold(ctx context.Context, pod string, w Want) error {
	if err := s.hold(ctx, pod, w); err != nil {
		return fmt.Errorf("volume %s: %w", w.ID, err)
	}
	return nil
}

func (s *Store) hold(ctx context.Context, pod string, w Want) error {
	v := s.at(w.ID)
	lock, r, err := v.lockRecord(ctx)
	for errors.Is(err, ErrNotFound) {
		record := Record{Namespace: w.Namespace, Name: w.Name, SizeBytes: w.SizeBytes, Service: w.Service}
		if err := s.make(ctx, record, w); err != nil {
			return err
		}
		lock, r, err = v.lockRecord(ctx)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.resize(ctx, v, &r, w.SizeBytes); err != nil {
		return err
	}
	if r.Service != w.Service {
		r.Service = w.Service
		if err := v.write(r); err != nil {
			return err
		}
	}
	dir := s.held(pod)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The note comes first: so a mounted volume always has a pod, or Sweep finds it.
	if err := os.WriteFile(filepath.Join(dir, r.Serial), []byte(w.String()), 0o600); err != nil {
		return err
	}
	_, err = v.mount(r)
	return err
}

// resize gives a volume the size in its manifest.
func (s *Store) resize(ctx context.Context, v place, r *Record, size int64) error {
	const move = "'wangell volume backup', then 'rm', and 'restore' with the other --size"
	switch {
	case size == r.SizeBytes:
		return nil
	case r.SizeBytes == 0:
		return fmt.Errorf("it was made without a size, and cannot get one: leave persistent.size out, "+
			"or move its content: %s", move)
	case size < r.SizeBytes:
		return fmt.Errorf("it has %s, and cannot shrink: write persistent.size: %d, or move its content: %s",
			text.Bytes(r.SizeBytes), r.SizeBytes, move)
	}
	holders, err := s.holders(r.Serial)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return fmt.Errorf("it cannot grow to %s while pod %s uses it: put its service to sleep first",
			text.Bytes(size), holders[0])
	}
	if err := v.unmount(); err != nil {
		return err
	}
	return v.grow(ctx, r, size)
}

// Release gives up all volumes that a pod holds, and unmounts those that no other pod does. All data is on disk then.
func (s *Store) Release(ctx context.Context, pod string) error {
	dir := s.held(pod)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		name, err := os.ReadFile(file)
		if err == nil {
			err = s.release(ctx, ParseID(string(name)), file)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// release removes a note, and unmounts its volume if that was the last one.
func (s *Store) release(ctx context.Context, id ID, note string) error {
	v := s.at(id)
	lock, r, err := v.lockRecord(ctx)
	if errors.Is(err, ErrNotFound) {
		return errors.Join(os.Remove(note), s.sweepHidden())
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(note); err != nil {
		return err
	}
	if r.Serial != filepath.Base(note) { // it was removed, and made anew
		return s.sweepHidden()
	}
	if err := s.unmountUnheld(v, r); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil // another process uses it; the next Release or Sweep unmounts it
}

func (s *Store) unmountUnheld(v place, r Record) error {
	holders, err := s.holders(r.Serial)
	if err != nil || len(holders) > 0 {
		return err
	}
	return v.unmount()
}

// sweepPatience bounds how long Sweep waits for a volume that another process has locked.
const sweepPatience = 100 * time.Millisecond

// Sweep unmounts volumes that no pod holds, and removes those that a crash left half made or half removed. It must
// not run concurrently with Hold of the same instance.
func (s *Store) Sweep() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range list {
		if i.SizeBytes > 0 && len(i.Pods) == 0 {
			errs = append(errs, s.sweep(s.at(i.ID()), i.Record))
		}
	}
	return errors.Join(append(errs, s.sweepHidden())...)
}

func (s *Store) sweep(v place, r Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepPatience)
	defer cancel()
	lock, err := v.lock(ctx)
	if err != nil {
		return nil // in use, or removed
	}
	defer lock.Close()
	return s.unmountUnheld(v, r)
}

// sweepHidden removes volumes that were left half removed, unless pods still use them, and those left half made.
func (s *Store) sweepHidden() error {
	removed, err := filepath.Glob(filepath.Join(s.dir, removedDir, "*"))
	if err != nil {
		return err
	}
	made, err := filepath.Glob(filepath.Join(s.dir, newDir, "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range made {
		lock, err := place(dir).tryLock()
		if lock == nil {
			continue // it is still being made, or it has reached its place meanwhile
		}
		errs = append(errs, err, place(dir).destroy(), lock.Close())
	}
	for _, dir := range removed {
		holders, err := s.holders(filepath.Base(dir))
		if err != nil {
			return err
		}
		if len(holders) == 0 {
			errs = append(errs, place(dir).destroy())
		}
	}
	return errors.Join(errs...)
}
