// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// maxLogTail is the size in bytes of the end of a log that an Exit carries.
const maxLogTail = 2 << 10

// removedLog is the beginning of the log that kubelet returns, in place of an error, for a container that it has
// removed.
const removedLog = "unable to retrieve container logs"

// copyLog copies the log of a container of a pod to w, the last lines only unless Tail is negative. A pod that is
// gone, or not started yet, has none.
func (q *requests) copyLog(ctx context.Context, namespace, name string, w io.Writer, want runtime.LogOptions) error {
	options := &corev1.PodLogOptions{Container: want.Container, Follow: want.Follow}
	if want.Tail >= 0 {
		options.TailLines = new(int64(want.Tail))
	}
	stream, err := q.client.CoreV1().Pods(namespace).GetLogs(name, options).Stream(ctx)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) || errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		return fmt.Errorf("log of pod %s/%s: %w", namespace, name, err)
	}
	defer stream.Close()
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			if _, werr := io.WriteString(w, line); werr != nil {
				return werr
			}
		}
		if err != nil {
			return nil // the end of the log, or of ctx
		}
	}
}

// logTail returns the end of a pod's output; empty if it cannot be read.
func (q *requests) logTail(ctx context.Context, pod v1alpha1.Key, container string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	namespace, name := pod.Split()
	var text []byte
	// If kubelet has started the container again, the log of interest is that of the previous one.
	for _, previous := range []bool{true, false} {
		options := &corev1.PodLogOptions{Container: container, TailLines: new(int64(64)), Previous: previous}
		var err error
		text, err = q.client.CoreV1().Pods(namespace).GetLogs(name, options).DoRaw(ctx)
		if err == nil && !bytes.HasPrefix(text, []byte(removedLog)) {
			break
		}
		q.log.Debug("cannot read the end of a log",
			"pod", namespace+"/"+name, "previous", previous, "error", err)
		text = nil
	}
	if len(text) > maxLogTail {
		text = text[len(text)-maxLogTail:]
	}
	return string(text)
}

// lineWriter keeps the lines of several pods apart: each Write is one line.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
