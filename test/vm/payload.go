// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

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
	for _, c := range chosen {
		if err := p.add(ctx, c.files); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add adds files of the repository, by their paths in the payload, and the programs that they use.
func (p *payload) add(ctx context.Context, files map[string]string) error {
	for to, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to = filepath.Join(p.dir, to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o755)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(p.dir, "wangell")); err == nil || len(files) == 0 {
		return nil
	}
	for name, pkg := range map[string]string{"wangell": "./cmd/wangell", "hello": "./internal/images/image/hello"} {
		if err := p.build(ctx, "build", "-ldflags=-s -w", "-o", filepath.Join(p.dir, name), pkg); err != nil {
			return err
		}
	}
	bin := filepath.Join(p.dir, "demo", "bin") // where make build puts it
	return errors.Join(os.MkdirAll(bin, 0o755), os.Symlink("../../wangell", filepath.Join(bin, "wangell")))
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
