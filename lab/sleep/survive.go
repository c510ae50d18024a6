// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/netlab"
)

// kept is an open connection to a hello service.
type kept struct {
	conn  *netlab.Socket
	lines *bufio.Reader
}

// question is the request that is made on kept connections, which stay open.
func question(address string) string { return "GET / HTTP/1.1\r\nHost: " + address + "\r\n\r\n" }

// exchange makes one request on the connection and returns the time to the end of the answer.
func (k kept) exchange(address string) (time.Duration, error) {
	runtime.LockOSThread() // see probe.OnThread
	defer runtime.UnlockOSThread()
	begin := time.Now()
	if _, err := io.WriteString(k.conn, question(address)); err != nil {
		return 0, err
	}
	err := k.finish()
	return time.Since(begin), err
}

// finish reads an answer.
func (k kept) finish() error {
	if err := k.conn.SetDeadline(time.Now().Add(probe.Timeout)); err != nil {
		return err
	}
	response, err := http.ReadResponse(k.lines, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", response.Status)
	}
	return err
}

// connect opens a connection to a service and uses it once.
func (p *place) connect(ctx context.Context, name string) (kept, error) {
	s, err := p.Net.Client().Socket()
	if err != nil {
		return kept{}, err
	}
	k := kept{s, bufio.NewReader(s)}
	ctx, cancel := context.WithTimeout(ctx, probe.Timeout)
	defer cancel()
	if _, err = s.DialContext(ctx, "tcp4", p.addresses[name]); err == nil {
		_, err = k.exchange(p.addresses[name])
	}
	if err != nil {
		s.Close()
	}
	return k, err
}

// measureSurvival freezes and thaws services with open connections, uses each connection again at the end, and then
// has them flap.
func measureSurvival(ctx context.Context, p Params, out lab.Output, s *Samples) (err error) {
	if p.Freezes == 0 && p.Flap == 0 {
		return nil
	}
	count := max(1, min(inStorm, p.Connections, p.Freezes/3))
	names, at, err := newHellos(ctx, p, count, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	if err := at.askAll(ctx, names, func(int) {}); err != nil {
		return err
	}
	if p.Freezes > 0 {
		if s.Survival, err = at.survive(ctx, names, p, out); err != nil {
			return err
		}
		for range newStorms {
			took, err := at.storm(ctx, names)
			if err != nil {
				return err
			}
			s.Survival.NewStorm = append(s.Survival.NewStorm, took...)
		}
	}
	if p.Flap > 0 {
		s.Flap, err = at.flap(ctx, names[:min(len(names), atOnce)], p.Flap)
	}
	return err
}

// newStorms is how often all frozen services are asked at once on new connections.
const newStorms = 5

// survive freezes and thaws services until they have been frozen so often together.
func (p *place) survive(ctx context.Context, names []string, params Params, out lab.Output) (*Survival, error) {
	s := &Survival{Services: len(names), Tried: params.Connections, Load: report.LoadAverage()}
	open := make([][]kept, len(names)) // by service
	defer func() {
		for _, list := range open {
			for _, k := range list {
				k.conn.Close()
			}
		}
	}()
	for i := range params.Connections {
		of := i % len(names)
		k, err := p.connect(ctx, names[of])
		if err != nil {
			return s, err
		}
		open[of] = append(open[of], k)
	}
	broken := map[kept]error{}
	note := func(of int, k kept, err error) {
		if err != nil && broken[k] == nil {
			if broken[k] = err; s.First == "" {
				s.First = names[of] + ": " + err.Error()
			}
		}
	}
	use := func(of, n int) float64 {
		k := open[of][n%len(open[of])]
		took, err := k.exchange(p.addresses[names[of]])
		note(of, k, err)
		return report.Milliseconds(took)
	}
	for round := 0; s.Freezes < params.Freezes; round++ {
		if err := p.frozen(ctx, names...); err != nil {
			return s, err
		}
		s.Freezes += len(names)
		out.Progress(min(s.Freezes, params.Freezes), params.Freezes)
		var err error
		if round == 1 { // what is made once has been
			s.Before, err = p.resources()
		}
		if err != nil {
			return s, err
		}
		if round%2 == 0 {
			for of := range names {
				s.Exchange = append(s.Exchange, use(of, round))
			}
			continue
		}
		calls := make([]probe.Call, len(names))
		for of, name := range names {
			calls[of] = probe.Call{Socket: open[of][round%len(open[of])].conn, Request: question(p.addresses[name])}
		}
		timings, errs := probe.Storm(ctx, calls)
		for of := range names {
			k := open[of][round%len(open[of])]
			if errs[of] == nil {
				errs[of] = k.finish()
			}
			note(of, k, errs[of])
			s.Storm = append(s.Storm, report.Milliseconds(timings[of].FirstByte))
		}
	}
	if err := p.frozen(ctx, names...); err != nil {
		return s, err
	}
	var err error
	if s.After, err = p.resources(); err != nil {
		return s, err
	}
	for of := range names {
		for n := range open[of] {
			use(of, n)
			if broken[open[of][n]] == nil {
				s.Survived++
			}
		}
	}
	return s, nil
}

// resources counts what the instance has.
func (p *place) resources() (r Resources, err error) {
	found, err := p.Processes()
	if err != nil {
		return r, err
	}
	for _, pid := range found.Parts {
		for dir, n := range map[string]*int{"fd": &r.Files, "task": &r.Threads} {
			entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, dir))
			if err != nil {
				return r, err
			}
			*n += len(entries)
		}
	}
	hierarchies, err := filepath.Glob(cgroup.DefaultRoot + "/*")
	for _, dir := range append(hierarchies, cgroup.DefaultRoot) {
		entries, err := os.ReadDir(filepath.Join(dir, p.PodCgroup("")))
		if err != nil {
			continue // not in this hierarchy
		}
		for _, e := range entries {
			if e.IsDir() {
				r.Cgroups++
			}
		}
	}
	return r, err
}

// flap has clients with kept connections pause for about as long as it takes until a pod is frozen.
func (p *place) flap(ctx context.Context, names []string, span time.Duration) (*Flap, error) {
	f := &Flap{Load: report.LoadAverage()}
	ctx, cancel := context.WithTimeout(ctx, span+patience)
	defer cancel()
	begin := time.Now()
	var mu sync.Mutex
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() {
			k, err := p.connect(ctx, name)
			for n := 0; err == nil && time.Since(begin) < span; n++ {
				// A pod is frozen one to three seconds after its last packet, as the daemon looks once a second.
				pause := time.Second + time.Duration((n*137+i*59)%2200)*time.Millisecond
				if err = lab.Sleep(ctx, pause); err != nil {
					break
				}
				var took time.Duration
				took, err = k.exchange(p.addresses[name])
				mu.Lock()
				f.Requests++
				f.Longest = max(f.Longest, report.Milliseconds(took))
				mu.Unlock()
			}
			if k.conn != nil {
				k.conn.Close()
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				if f.Failed++; f.First == "" {
					f.First = name + ": " + err.Error()
				}
			}
		})
	}
	freezes := make(chan int, 1)
	watch, stop := context.WithCancel(ctx)
	go func() { freezes <- p.countFreezes(watch) }()
	group.Wait()
	stop()
	f.Seconds, f.Freezes = time.Since(begin).Seconds(), <-freezes
	return f, nil
}

// countFreezes counts the events by which services froze, until ctx ends.
func (p *place) countFreezes(ctx context.Context) (n int) {
	_ = p.Control.Events(ctx, func() {}, func(e status.Event) {
		if strings.EqualFold(e.State, "Frozen") {
			n++
		}
	})
	return n
}
