// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// registryOnLAN returns the address at which nodes reach the local registry.
func registryOnLAN(p plan) string { return fmt.Sprintf("%s:5000", p.ControlIP) }

// startHub starts the process that serves the registry and connects programs outside of the cluster's namespaces to the
// registry and the API server, through two ports of the host's loopback. It returns their addresses.
func startHub(p plan, program string) (proc process, registryAddr, apiAddr string, err error) {
	var files []*os.File
	var addrs []string
	for range 2 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return process{}, "", "", fmt.Errorf("hub: %w", err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return process{}, "", "", fmt.Errorf("hub: %w", err)
		}
		defer f.Close()
		files, addrs = append(files, f), append(addrs, l.Addr().String())
	}
	proc, err = startDetached(p.netnsPath(controlMachine), filepath.Join(p.Dir, "hub.log"), 0, files,
		program, "hub", registryOnLAN(p), p.ControlIP.String()+":6443", filepath.Join(p.Dir, "registry"))
	return proc, addrs[0], addrs[1], err
}

// runHub is the hub process. It runs in the network namespace of the control plane, with two loopback sockets of the
// host's namespace as files 3 and 4.
func runHub(listen, apiServer, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	lan, err := net.Listen("tcp4", listen)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	registryHere, err := net.FileListener(os.NewFile(3, "registry"))
	if err != nil {
		return fmt.Errorf("hub: file 3 is no socket: `up` starts this: %w", err)
	}
	apiHere, err := net.FileListener(os.NewFile(4, "api"))
	if err != nil {
		return fmt.Errorf("hub: file 4 is no socket: `up` starts this: %w", err)
	}
	handler := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(dir)),
		registry.Logger(log.New(io.Discard, "", 0)))
	failed := make(chan error, 3)
	go func() { failed <- forward(apiHere, apiServer) }()
	for _, l := range []net.Listener{lan, registryHere} {
		server := http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		go func() { failed <- server.Serve(l) }()
	}
	return fmt.Errorf("hub: %w", <-failed)
}

// forward forwards connections of l to an address, until l fails.
func forward(l net.Listener, to string) error {
	for {
		in, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer in.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			var d net.Dialer
			out, err := d.DialContext(ctx, "tcp4", to)
			if err != nil {
				return
			}
			defer out.Close()
			done := make(chan struct{}, 2)
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].(*net.TCPConn).CloseWrite()
					done <- struct{}{}
				}()
			}
			<-done
			<-done
		}()
	}
}
