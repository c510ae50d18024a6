// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func TestFileAppearsOnceItIsComplete(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "out")
	if err := Into(file, 0o640, text("one")); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	err := Into(file, 0o600, func(w io.Writer) error { return errors.Join(text("half")(w), failed) })
	if !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	info, statErr := os.Stat(file)
	if got, err := os.ReadFile(file); err != nil || statErr != nil || string(got) != "one" || info.Mode() != 0o640 {
		t.Errorf("%q, %v, %v, %v", got, err, info, statErr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// A rename onto /dev/null as root would have replaced it for the whole machine.
func TestWhatIsNoFileIsWrittenTo(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := os.ReadFile(pipe)
		got <- b
	}()
	if err := Into(pipe, 0o600, text("through")); err != nil {
		t.Fatal(err)
	}
	if b := <-got; string(b) != "through" {
		t.Errorf("%q", b)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("%v, %v", info, err)
	}
	if err := Into(t.TempDir(), 0o600, text("x")); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("into a folder: %v", err)
	}
}
