// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"wangell.loutres.me/test/vm/plan"
)

// payload is a folder whose content a VM gets as a disk: programs and tests.
type payload struct {
	dir    string
	arch   string
	chosen []check
}

func newPayload(ctx context.Context, dir, arch string, chosen []check) (*payload, error) {
	p := &payload{dir: dir, arch: arch, chosen: chosen}
	if err := p.build(ctx, "build", "-o", p.guest(), "./test/vm/guest"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "internal", "gate"), 0o755); err != nil {
		return nil, err
	}
	if err := p.build(ctx, "test", "-c", "-o", filepath.Join(dir, "gate.test"), "./internal/gate"); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(chosen, func(c check) bool { return c.service }) {
		return p, p.addService(ctx)
	}
	return p, nil
}

// addService adds what the check of wangell.service needs.
func (p *payload) addService(ctx context.Context) error {
	for name, pkg := range map[string]string{"wangell": "./cmd/wangell", "hello": "./internal/image/hello"} {
		if err := p.build(ctx, "build", "-ldflags=-s -w", "-o", filepath.Join(p.dir, name), pkg); err != nil {
			return err
		}
	}
	for _, name := range []string{"deploy/debian/wangell.service", "test/vm/hello.yaml", "test/vm/service.sh"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.dir, filepath.Base(name)), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// guest is the program for the VM itself.
func (p *payload) guest() string { return filepath.Join(p.dir, "guest") }

// build runs the Go compiler for the VM's architecture.
func (p *payload) build(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOARCH="+p.arch, "GOOS=linux", "CGO_ENABLED=0")
	_, err := output(cmd)
	return err
}

// write makes the disk for a VM.
func (p *payload) write(ctx context.Context, disk string) error {
	data, err := json.Marshal(planFor(p.chosen))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, plan.File), data, 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(disk); err != nil {
		return err
	}
	return makeDisk(ctx, disk, p.dir, 64<<20)
}
