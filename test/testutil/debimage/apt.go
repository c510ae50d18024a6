// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// maintainerTools are patterns of packages that others need only for their maintainer scripts.
var maintainerTools = []string{
	"adduser", "debconf", "dpkg", "init-system-helpers", "libpam-runtime", "libperl*", "lib*-perl", "lsb-base", "passwd",
	"perl*", "runit-helper", "sensible-utils", "sysvinit-utils", "tar", "ucf", "usrmerge",
}

// apt runs apt-get with its own configuration and an empty package state.
type apt struct {
	dir   string   // for everything that it writes
	env   []string // with the configuration
	conf  []byte   // the machine's own configuration, without hooks
	cache string   // folder of the cache, "" for none
	// suite is as in Recipe; its lists have been downloaded once suiteListed is set.
	suite       string
	suiteListed bool
}

// newApt writes a configuration for apt into dir: the machine's own without hooks, and with folders below dir. cache is
// the folder of the cache, or "".
func newApt(ctx context.Context, dir, cache string) (*apt, error) {
	dump, err := run(exec.CommandContext(ctx, "apt-config", "dump"))
	if err != nil {
		return nil, fmt.Errorf("needs apt (Debian or Ubuntu): %w", err)
	}
	var conf bytes.Buffer
	for line := range strings.Lines(string(dump)) {
		if !strings.Contains(line, "Post-Invoke") && !strings.Contains(line, "Pre-Invoke") {
			conf.WriteString(line)
		}
	}
	own := bytes.Clone(conf.Bytes())
	// apt-config has read Parts and Main already.
	fmt.Fprintf(&conf, `Dir::Etc::Parts "/dev/null"; Dir::Etc::Main "/dev/null"; Dir::State::status %q; Dir::Cache %q;
APT::Sandbox::User ""; Debug::NoLocking "true"; APT::Install-Recommends "false"; APT::Install-Suggests "false";
`, filepath.Join(dir, "status"), filepath.Join(dir, "cache"))
	file := filepath.Join(dir, "apt.conf")
	env := append(os.Environ(), "APT_CONFIG="+file, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	return &apt{dir: dir, env: env, conf: own, cache: cache}, errors.Join(
		os.WriteFile(file, conf.Bytes(), 0o600),
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o600),
		os.MkdirAll(filepath.Join(dir, "cache", "archives", "partial"), 0o700),
	)
}

func (a *apt) get(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env, cmd.Dir = a.env, dir
	return run(cmd)
}

// resolve returns the packages to install on an empty system to get names, in apt's order. If the machine's package
// lists are insufficient, it downloads its own. What apt chose from the machine's lists is in the cache until these or
// its configuration change.
func (a *apt) resolve(ctx context.Context, names []string) ([]Package, error) {
	if len(names) == 0 {
		return nil, nil
	}
	kept := ""
	if a.cache != "" {
		// Without the file's name there is no cache.
		kept, _ = resolutionFile(a.cache, a.conf, aptState, a.suite, names)
	}
	if kept != "" {
		if packages, err := readResolution(kept); err == nil && len(packages) > 0 {
			return packages, nil
		}
	}
	if err := a.listSuite(ctx); err != nil {
		return nil, err
	}
	args := append([]string{"-qq", "--print-uris", "install", "--"}, names...)
	out, err := a.get(ctx, a.dir, args...)
	if err != nil {
		kept = "" // what apt chooses from other lists
		if updateErr := a.update(ctx); updateErr != nil {
			return nil, fmt.Errorf("%w; fetching package lists: %w", err, updateErr)
		}
		if out, err = a.get(ctx, a.dir, args...); err != nil {
			return nil, fmt.Errorf("%w: check the machine's apt sources", err)
		}
	}
	packages, err := parseURIs(string(out))
	if err == nil && kept != "" {
		_ = writeResolution(kept, packages) // they are right even if they cannot be cached
	}
	return packages, err
}

// debianKeys are the keys of Debian's releases.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// listSuite makes the suite, if there is one, the only source, in the archive of the machine's own release.
func (a *apt) listSuite(ctx context.Context) error {
	if a.suite == "" || a.suiteListed {
		return nil
	}
	a.suiteListed = true
	archive, err := a.debianArchive(ctx)
	if err == nil && archive == "" { // the machine has no package lists yet
		if err = a.update(ctx); err == nil {
			archive, err = a.debianArchive(ctx)
		}
	}
	if err == nil && archive == "" {
		err = errors.New("none of the machine's apt sources is Debian's archive")
	}
	if err != nil {
		return fmt.Errorf("packages of %s: %w", a.suite, err)
	}
	list := filepath.Join(a.dir, "sources.list")
	text := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", debianKeys, archive, a.suite)
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		return err
	}
	if err := a.configure("Dir::Etc::SourceList %q; Dir::Etc::SourceParts \"/dev/null\";\n", list); err != nil {
		return err
	}
	return a.update(ctx)
}

// debianArchive returns the address of Debian's archive in the machine's sources; empty if no list of it is there.
func (a *apt) debianArchive(ctx context.Context) (string, error) {
	out, err := a.get(ctx, a.dir, "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		if uri, label, _ := strings.Cut(strings.TrimSpace(line), " "); label == "Debian" {
			return uri, nil
		}
	}
	return "", nil
}

// configure adds settings to apt's configuration.
func (a *apt) configure(format string, args ...any) error {
	f, err := os.OpenFile(filepath.Join(a.dir, "apt.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, format, args...)
	return errors.Join(err, f.Close())
}

// update downloads package lists into a folder below a.dir and uses them from then on.
func (a *apt) update(ctx context.Context) error {
	lists := filepath.Join(a.dir, "lists")
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o700); err != nil {
		return err
	}
	if err := a.configure("Dir::State::lists %q;\n", lists); err != nil {
		return err
	}
	_, err := a.get(ctx, a.dir, "-qq", "update")
	return err
}

// download downloads packages and returns their files, in order. apt verifies signatures and hashes.
func (a *apt) download(ctx context.Context, packages []Package) ([]string, error) {
	if len(packages) == 0 {
		return nil, nil
	}
	if err := a.listSuite(ctx); err != nil { // if what apt chose was in the cache
		return nil, err
	}
	debs := filepath.Join(a.dir, "debs")
	if err := os.MkdirAll(debs, 0o700); err != nil {
		return nil, err
	}
	args := []string{"-qq", "download"}
	for _, p := range packages {
		args = append(args, p.Name+"="+p.Version)
	}
	if _, err := a.get(ctx, debs, args...); err != nil {
		return nil, fmt.Errorf("%w: if a package is not found, the package lists are outdated: run apt-get update", err)
	}
	var files []string
	for _, p := range packages {
		found, err := filepath.Glob(filepath.Join(debs, p.Name+"_"+strings.ReplaceAll(p.Version, ":", "%3a")+"_*.deb"))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("package %s %s was not downloaded", p.Name, p.Version)
		}
		files = append(files, found[0])
	}
	return files, nil
}

// parseURIs parses the output of `apt-get --print-uris`: 'URI' NAME_VERSION_ARCHITECTURE.deb SIZE [HASH].
func parseURIs(out string) ([]Package, error) {
	var packages []Package
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[0], "'") {
			continue
		}
		parts := strings.Split(fields[1], "_")
		if len(parts) != 3 {
			return nil, fmt.Errorf("apt-get names a package file %q: want NAME_VERSION_ARCHITECTURE.deb", fields[1])
		}
		version, err := url.PathUnescape(parts[1])
		if err != nil {
			return nil, fmt.Errorf("apt-get names a package file %q: %w", fields[1], err)
		}
		packages = append(packages, Package{Name: parts[0], Version: version})
	}
	if len(packages) == 0 {
		return nil, errors.New("apt-get names no package file")
	}
	return packages, nil
}

// wanted returns the packages whose names match none of the patterns.
func wanted(packages []Package, without []string) []Package {
	var kept []Package
next:
	for _, p := range packages {
		for _, pattern := range without {
			if ok, err := path.Match(pattern, p.Name); ok && err == nil {
				continue next
			}
		}
		kept = append(kept, p)
	}
	return kept
}

// run runs a command and returns its standard output. The error includes its standard error.
func run(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
