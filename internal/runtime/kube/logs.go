// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wangell.loutres.me/internal/runtime"
)

// Logs implements runtime.Runtime, by the API server's log endpoint. What pods wrote that are gone is gone, too.
// tail counts for each pod.
func (r *Runtime) Logs(ctx context.Context, k runtime.Key, w io.Writer, tail int, follow bool) error {
	shared := &lineWriter{w: w}
	if !follow {
		for _, p := range r.podsOf(k) {
			if err := r.copyLog(ctx, k, p, shared, tail, false); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var readers sync.WaitGroup
	defer readers.Wait()
	followed := map[*pod]bool{}
	for first := true; ; first = false {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		for _, p := range r.podsOf(k) {
			if followed[p] {
				continue
			}
			followed[p] = true
			n := -1
			if first {
				n = tail
			}
			readers.Go(func() {
				if err := r.copyLog(ctx, k, p, shared, n, true); err != nil {
					r.log.Debug(err.Error())
				}
			})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// podsOf returns the pods of a service, by name.
func (r *Runtime) podsOf(k runtime.Key) []*pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*pod
	for _, p := range r.byUID {
		if p.rt.Service == k {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *pod) int { return strings.Compare(a.name, b.name) })
	return out
}

func (r *Runtime) copyLog(ctx context.Context, k runtime.Key, p *pod, w io.Writer, tail int, follow bool) error {
	options := &corev1.PodLogOptions{Container: p.container, Follow: follow}
	if tail >= 0 {
		lines := int64(tail)
		options.TailLines = &lines
	}
	stream, err := r.cfg.Client.CoreV1().Pods(p.service.namespace).GetLogs(p.name, options).Stream(ctx)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) || errors.Is(err, context.Canceled):
		return nil // gone, or not started yet
	case err != nil:
		return fmt.Errorf("service %s: log of pod %s: %w", k, p.name, err)
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
			return nil // its end, or that of ctx
		}
	}
}

// lineWriter keeps the lines of several pods apart.
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
