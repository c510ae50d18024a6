// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// background is a command that runs until the test ends.
type background struct {
	stdin io.Writer
	lines chan string // of its standard output; closed when that ends
	stop  func()      // kills it and waits until it has ended
	said  strings.Builder
}

// inBackground starts a command, which is killed when the test ends. command makes it.
func inBackground(t *testing.T, command func(context.Context) *exec.Cmd) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := command(ctx)
	b := &background{lines: make(chan string)}
	cmd.Stderr = &b.said
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		b.stdin, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(b.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			select {
			case b.lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	b.stop = func() {
		cancel()
		<-read
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(b.stop)
	return b
}

// line returns the next line that the command prints. The test fails if it ends, or prints none for long.
func (b *background) line(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-b.lines:
		if ok {
			return line
		}
	case <-time.After(e2e.Patience):
	}
	b.stop()
	t.Fatalf("the command printed no line; standard error: %s", b.said.String())
	return ""
}
