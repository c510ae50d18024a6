// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// service is a long-running program of a machine. It is restarted one second after it exits.
type service struct {
	Name string
	Argv []string // starts with the program's path
	Env  []string
	Log  string // file that its output is appended to
}

// services runs a machine's programs, and reaps every process whose parent has exited.
type services struct {
	log *slog.Logger
	mu  sync.Mutex
	// running has the services that should run. The pid is 0 between two starts.
	running map[string]*running
	// ended has a channel for each child that is waited for.
	ended map[int]chan syscall.WaitStatus
}

type running struct {
	spec service
	pid  int
	stop chan time.Duration // receives the patience of the stop, once
	done chan struct{}      // closed once the service has stopped
}

func newServices(log *slog.Logger) *services {
	return &services{log: log, running: map[string]*running{}, ended: map[int]chan syscall.WaitStatus{}}
}

// reap collects the exit status of every child that has exited.
func (s *services) reap() {
	for {
		// The lock prevents a short-lived child from being reaped before launch has noted it.
		s.mu.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		waiter := s.ended[pid]
		delete(s.ended, pid)
		s.mu.Unlock()
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if waiter != nil {
			waiter <- status
		}
	}
}

// launch starts a program. The channel delivers its exit status.
func (s *services) launch(spec service) (int, <-chan syscall.WaitStatus, error) {
	out, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, nil, err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(spec.Argv[0], spec.Argv, &syscall.ProcAttr{
		Dir: "/", Env: spec.Env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", spec.Argv[0], err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	s.ended[pid] = ended
	return pid, ended, nil
}

// keep runs a service until it is stopped.
func (s *services) keep(r *running) {
	defer close(r.done)
	for {
		pid, ended, err := s.launch(r.spec)
		if err != nil {
			s.log.Error("service does not start", "service", r.spec.Name, "error", err)
		} else {
			s.log.Info("service started", "service", r.spec.Name, "pid", pid)
			s.setPid(r, pid)
			select {
			case status := <-ended:
				s.log.Warn("service ended", "service", r.spec.Name, "status", status.ExitStatus(), "signal", status.Signal())
			case patience := <-r.stop:
				end(pid, ended, patience)
				return
			}
			s.setPid(r, 0)
		}
		select {
		case <-time.After(time.Second):
		case <-r.stop:
			return
		}
	}
}

func (s *services) setPid(r *running, pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.pid = pid
}

// end sends SIGTERM to a process, and SIGKILL if it does not exit in time.
func end(pid int, ended <-chan syscall.WaitStatus, patience time.Duration) {
	if patience > 0 {
		_ = unix.Kill(pid, unix.SIGTERM)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		_ = unix.Kill(pid, unix.SIGKILL)
		<-ended
	}
}

// stopService stops a service, with SIGKILL after the patience, and waits for its exit. A service that does not run is
// not an error.
func (s *services) stopService(name string, patience time.Duration) {
	s.mu.Lock()
	r := s.running[name]
	delete(s.running, name)
	s.mu.Unlock()
	if r != nil {
		r.stop <- patience
		<-r.done
	}
}

// startService starts a service, and replaces one of the same name.
func (s *services) startService(spec service) {
	s.stopService(spec.Name, 5*time.Second)
	r := &running{spec: spec, stop: make(chan time.Duration, 1), done: make(chan struct{})}
	s.mu.Lock()
	s.running[spec.Name] = r
	s.mu.Unlock()
	go s.keep(r)
}

// handler serves: GET / (names and pids in the machine's PID namespace), PUT / (starts or replaces a service), DELETE
// /NAME?patience=5s (stops it), POST /run (runs a service once and returns its exit status).
func (s *services) handler() http.Handler {
	mux := http.NewServeMux()
	decode := func(w http.ResponseWriter, r *http.Request) (service, bool) {
		var spec service
		err := json.NewDecoder(r.Body).Decode(&spec)
		if err == nil && (spec.Name == "" || len(spec.Argv) == 0) {
			err = fmt.Errorf("a service needs a name and a program")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		return spec, err == nil
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		pids := map[string]int{}
		s.mu.Lock()
		for name, r := range s.running {
			pids[name] = r.pid
		}
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(pids)
	})
	mux.HandleFunc("PUT /{$}", func(w http.ResponseWriter, r *http.Request) {
		if spec, ok := decode(w, r); ok {
			s.startService(spec)
		}
	})
	mux.HandleFunc("DELETE /{name}", func(w http.ResponseWriter, r *http.Request) {
		patience, err := time.ParseDuration(r.FormValue("patience"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.stopService(r.PathValue("name"), patience)
	})
	mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		spec, ok := decode(w, r)
		if !ok {
			return
		}
		_, ended, err := s.launch(spec)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode((<-ended).ExitStatus())
	})
	return mux
}
