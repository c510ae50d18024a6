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
	"wangell.loutres.me/internal/base/text"
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

const (
	// daemonLogPatience is how long the daemon of a crashed pod's node may take to report the end of its log.
	daemonLogPatience = time.Second
	// kubeletLogPatience is how long kubelet may take after that. It may notice the end of a process a second late, and
	// has no log of a container that it takes for one that starts.
	kubeletLogPatience = 2 * time.Second
	// kubeletLogRetry is the pause between two questions to kubelet.
	kubeletLogRetry = 200 * time.Millisecond
)

// ReportLog implements runtime.Cluster. It takes logs of the pods that the API server has bound to the daemon's node
// alone.
func (r *Runtime) ReportLog(l runtime.PodLog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byUID[l.PodID]
	if p == nil {
		p = r.gone.lately(l.PodID)
	}
	if p == nil || p.node != l.Node {
		return
	}
	r.ended.put(p.service.key, p.rt.ID, l.Container, l.Text)
	select {
	case <-p.logged:
	default:
		if p.isMain(l.Container) {
			close(p.logged)
		}
	}
}

// crashLog returns the end of the output of a pod whose process has ended: as the daemon of its node reports it or, if
// that does not, as kubelet has it; empty if neither has it in time.
func (r *Runtime) crashLog(p *pod) string {
	patience := daemonLogPatience
	if r.cfg.WithoutDaemons {
		patience = 0
	}
	select {
	case <-p.logged:
	case <-time.After(patience):
		ctx, cancel := context.WithTimeout(r.ctx, kubeletLogPatience)
		defer cancel()
		for {
			tail := r.api.logTail(ctx, v1alpha1.Key(p.service.namespace+"/"+p.name), p.container)
			if tail != "" {
				return tail
			}
			select {
			case <-p.gone:
				return ""
			case <-ctx.Done():
				return ""
			case <-time.After(kubeletLogRetry):
			}
		}
	case <-r.ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, _ := r.ended.container(p.rt.ID, p.container)
	return text.LastLines(kept, maxLogTail)
}

// logTail returns the end of a pod's output; empty if it cannot be read.
func (q *requests) logTail(ctx context.Context, pod v1alpha1.Key, container string) string {
	namespace, name := pod.Split()
	var tail []byte
	// If kubelet has started the container again, the log of interest is that of the previous container.
	for _, previous := range []bool{true, false} {
		options := &corev1.PodLogOptions{Container: container, TailLines: new(int64(64)), Previous: previous}
		var err error
		tail, err = q.client.CoreV1().Pods(namespace).GetLogs(name, options).DoRaw(ctx)
		if err == nil && !bytes.HasPrefix(tail, []byte(removedLog)) {
			break
		}
		q.log.Debug("cannot read the end of a log",
			"pod", namespace+"/"+name, "previous", previous, "error", err)
		tail = nil
	}
	return text.LastLines(string(tail), maxLogTail)
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
