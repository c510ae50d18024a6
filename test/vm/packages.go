// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suites are the sources of kernels: Debian 12, 13 and newer, with backports and security updates.
var suites = []string{
	"debian bookworm", "debian-security bookworm-security", "debian bookworm-backports",
	"debian trixie", "debian-security trixie-security", "debian trixie-backports", "debian sid",
}

// oldestSupported is the first kernel that the gate works with.
var oldestSupported = []int{6, 6}

// packages is an apt with package lists of its own, which does not touch those of the machine.
type packages struct {
	dir, arch string
	env       []string
}

// newPackages prepares an apt for an architecture in a folder of the cache, with lists not older than a day.
func newPackages(ctx context.Context, dir, mirror, arch string) (*packages, error) {
	p := &packages{dir: dir, arch: arch}
	conf := filepath.Join(dir, "apt.conf")
	p.env = append(os.Environ(), "APT_CONFIG="+conf, "LC_ALL=C.UTF-8")
	var sources strings.Builder
	for _, s := range suites {
		fmt.Fprintf(&sources, "deb [signed-by=%s] %s/%s main\n", keyring, mirror, s)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "parts"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	settings := fmt.Sprintf(`Dir::Etc::SourceList %q; Dir::Etc::SourceParts %q; Dir::Etc::PreferencesParts %[2]q;
Dir::Etc::Preferences "/dev/null"; Dir::State::Lists %[3]q; Dir::State::status %q; Dir::Cache %q;
APT::Architecture %q; APT::Architectures { %[6]q; }; APT::Sandbox::User "root"; Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false"; Acquire::Retries "3";
`, filepath.Join(dir, "sources.list"), filepath.Join(dir, "parts"), filepath.Join(dir, "lists"),
		filepath.Join(dir, "status"), filepath.Join(dir, "cache"), arch)
	stamp := filepath.Join(dir, "updated")
	if err := errors.Join(
		os.WriteFile(conf, []byte(settings), 0o644),
		os.WriteFile(filepath.Join(dir, "sources.list"), []byte(sources.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o644),
	); err != nil {
		return nil, err
	}
	if info, err := os.Stat(stamp); err == nil && time.Since(info.ModTime()) < 24*time.Hour {
		return p, nil
	}
	say("package lists of %s for %s", mirror, arch)
	if _, err := p.run(ctx, "", "apt-get", "-qq", "update"); err != nil {
		return nil, err
	}
	return p, os.WriteFile(stamp, nil, 0o644)
}

func (p *packages) run(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = p.env, dir
	return output(cmd)
}

// kernels returns the releases of all kernels, oldest first.
func (p *packages) kernels(ctx context.Context) ([]string, error) {
	out, err := p.run(ctx, "", "apt-cache", "pkgnames", "linux-image-")
	if err != nil {
		return nil, err
	}
	return releases(strings.Fields(string(out)), p.arch), nil
}

// releases returns the releases (uname -r) of the ordinary kernels of an architecture among package names, oldest
// first.
func releases(names []string, arch string) []string {
	ordinary := regexp.MustCompile(`^linux-image-([0-9]+\.[0-9]+\.[0-9]+[^-]*(-[0-9]+)?-` + arch + `)$`)
	var found []string
	for _, n := range names {
		if m := ordinary.FindStringSubmatch(n); m != nil {
			found = append(found, m[1])
		}
	}
	slices.SortFunc(found, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) })
	return found
}

var digits = regexp.MustCompile(`[0-9]+`)

// numbers returns the numbers in a release, without the one in the name of an architecture.
func numbers(release string) []int {
	if i := strings.LastIndex(release, "-"); i > 0 {
		release = release[:i]
	}
	var all []int
	for _, d := range digits.FindAllString(release, -1) {
		n, _ := strconv.Atoi(d) // digits
		all = append(all, n)
	}
	return all
}

// choose returns the release that a word means: "oldest" (that the gate works with), "newest", or the newest one that
// begins with the given numbers, such as 6.12 or 6.12.43.
func choose(all []string, word string) (string, error) {
	supported := slices.DeleteFunc(slices.Clone(all), func(r string) bool {
		return slices.Compare(numbers(r), oldestSupported) < 0
	})
	switch {
	case word == "oldest" && len(supported) > 0:
		return supported[0], nil
	case word == "newest" && len(supported) > 0:
		return supported[len(supported)-1], nil
	}
	want := numbers(word + "-")
	for _, r := range slices.Backward(all) {
		if got := numbers(r); len(want) > 0 && len(got) >= len(want) && slices.Equal(got[:len(want)], want) {
			return r, nil
		}
	}
	return "", fmt.Errorf("no package has kernel %q; there are %s", word, strings.Join(all, ", "))
}

// kernel is an unpacked kernel in the cache.
type kernel struct{ image, initrdModules, modulesDisk string }

// fetch downloads a kernel into the cache: its image, its modules, and a disk with them.
func (p *packages) fetch(ctx context.Context, cache, release string) (kernel, error) {
	dir := filepath.Join(cache, "kernel-"+release)
	k := kernel{image: filepath.Join(dir, "vmlinuz"), initrdModules: filepath.Join(dir, "lib", "modules", release),
		modulesDisk: filepath.Join(dir, "modules.img")}
	return k, once(dir, func(tmp string) error {
		say("kernel %s", release)
		names, err := p.run(ctx, "", "apt-cache", "pkgnames", "linux-")
		if err != nil {
			return err
		}
		args := []string{"-qq", "download"}
		// Newer kernels have packages of their own for the image and the modules.
		for _, kind := range []string{"image", "binary", "modules"} {
			if name := "linux-" + kind + "-" + release; slices.Contains(strings.Fields(string(names)), name) {
				args = append(args, name)
			}
		}
		if _, err := p.run(ctx, tmp, "apt-get", args...); err != nil {
			return err
		}
		debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
		if err != nil {
			return err
		}
		unpacked := filepath.Join(tmp, "unpacked")
		for _, deb := range debs {
			if _, err := p.run(ctx, "", "dpkg-deb", "-x", deb, unpacked); err != nil {
				return err
			}
			if err := os.Remove(deb); err != nil {
				return err
			}
		}
		modules := filepath.Join(unpacked, "usr", "lib", "modules") // since Debian 13
		if _, err := os.Stat(modules); err != nil {
			modules = filepath.Join(unpacked, "lib", "modules")
		}
		image := filepath.Join(unpacked, "boot", "vmlinuz-"+release)
		if _, err := os.Stat(image); err != nil {
			image = filepath.Join(modules, release, "vmlinuz") // of newer kernels
		}
		if err := errors.Join(os.Mkdir(filepath.Join(tmp, "lib"), 0o755), os.Rename(image, filepath.Join(tmp, "vmlinuz")),
			os.Rename(modules, filepath.Join(tmp, "lib", "modules")), os.RemoveAll(unpacked)); err != nil {
			return err
		}
		if _, err := p.run(ctx, "", "depmod", "-b", tmp, release); err != nil {
			return err
		}
		return makeDisk(ctx, filepath.Join(tmp, "modules.img"), filepath.Join(tmp, "lib", "modules"), 64<<20)
	})
}
