// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Remove removes a volume and everything in it. The name is free at once; pods that hold the volume keep its files
// until they end. Removing a volume that does not exist is not an error.
func (s *Store) Remove(ctx context.Context, id ID) error {
	if err := s.remove(ctx, id, func(Record) error { return nil }); err != nil {
		return fmt.Errorf("volume %s: %w", id, err)
	}
	return nil
}

// HeldError is returned if pods hold a volume.
type HeldError struct {
	ID      ID
	Pod     string
	Service string
}

// Error implements error.
func (e HeldError) Error() string {
	return fmt.Sprintf("volume %s: pod %s uses it: put the service to sleep first ('wangell sleep %s')", e.ID, e.Pod,
		e.Service)
}

// RemoveUnheld is like Remove, but fails with a HeldError if a pod holds the volume.
func (s *Store) RemoveUnheld(ctx context.Context, id ID) error {
	return s.remove(ctx, id, s.unheld)
}

// unheld returns a HeldError if a pod holds a volume.
func (s *Store) unheld(r Record) error {
	holders, err := s.holders(r.Serial)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return HeldError{r.ID(), holders[0], r.Service}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, id ID, may func(Record) error) error {
	v := s.at(id)
	lock, r, err := v.lockRecord(ctx)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := may(r); err != nil {
		return err
	}
	hidden := filepath.Join(s.dir, removedDir)
	if err := os.MkdirAll(hidden, 0o700); err != nil {
		return err
	}
	if err := os.Rename(string(v), filepath.Join(hidden, r.Serial)); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(string(v))) // the namespace's folder, if it is empty
	return s.sweepHidden()
}
