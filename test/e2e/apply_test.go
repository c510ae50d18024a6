// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// files is a folder of manifests.
type files struct{ dir string }

func (l *lab) files(t *testing.T) files {
	t.Helper()
	f := files{filepath.Join(l.dir, "manifests")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return f
}

// write replaces a file as editors do: a new file takes its place.
func (f files) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(f.dir, name)
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func (f files) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		t.Fatal(err)
	}
}

// version is a service whose answers have a version.
func version(name, v string) service {
	return service{name: name, env: map[string]string{"VERSION": v}}
}

// Files are added, changed, broken, repaired and removed.
func TestChangedManifestFilesAreApplied(t *testing.T) {
	l := newLab(t, 1)
	f := l.files(t)
	f.write(t, "a.yaml", manifest(version("a", "1")))
	u := l.startWith(t, "", "-f", f.dir)
	a := l.address(t, "a")
	if got := e2e.MustAsk(t, l.Client(), a); got.Version != "1" {
		t.Errorf("a: %+v", got)
	}

	f.write(t, "b.yaml", manifest(version("b", "1")))
	l.untilThere(t, "b")
	b := l.address(t, "b")
	e2e.MustAsk(t, l.Client(), b)

	// A cold service uses its new spec from the next wake on, at the same address.
	l.sleep(t, "b")
	f.write(t, "b.yaml", manifest(version("b", "2")))
	l.until(t, "b", "the new spec", func(s status.Status) bool { return s.Service.Spec.Env[0].Value == "2" })
	if got := e2e.MustAsk(t, l.Client(), b); got.Version != "2" {
		t.Errorf("b, changed while cold: %+v", got)
	}

	// Of a broken file no change is applied, and its line is reported. Others are.
	begin := strings.Count(u.said(), "b.yaml")
	f.write(t, "b.yaml", strings.Replace(manifest(version("b", "3")), "port: 80\n", "port: eighty\n", 1))
	f.write(t, "c.yaml", manifest(version("c", "1")))
	l.untilSaid(t, u, func(said string) bool {
		return strings.Count(said, "b.yaml") > begin && strings.Contains(said, "their services stay as they were") &&
			strings.Contains(said, "spec.port")
	})
	l.untilThere(t, "c")
	if got := e2e.MustAsk(t, l.Client(), b); got.Version != "2" {
		t.Errorf("b, with a broken file: %+v", got)
	}
	if ps := l.must(t, "ps"); !regexp.MustCompile(`b\.yaml +- +Invalid .* 7:9: spec.port: want a number`).MatchString(ps) {
		t.Errorf("ps does not say what is wrong with b.yaml:\n%s", ps)
	}

	f.write(t, "b.yaml", manifest(version("b", "4")))
	l.untilThere(t, "c")
	l.untilVersion(t, "b", b, "4")
	e2e.MustAsk(t, l.Client(), l.address(t, "c"))

	if ps := l.must(t, "ps"); strings.Contains(ps, "Invalid") {
		t.Errorf("ps reports a mistake that is corrected:\n%s", ps)
	}
	f.remove(t, "a.yaml")
	l.untilGone(t, "a")
	dialer := l.Client().Dialer()
	dialer.Timeout = time.Second
	if c, err := dialer.Dial("tcp", a); err == nil {
		c.Close()
		t.Error("a removed service still answers")
	}
	e2e.MustAsk(t, l.Client(), b)
}

// Without a service there is nothing to attach a gate for. The machine has no address but 127.0.0.1, and reaches the
// first service all the same.
func TestFirstServiceAttachesTheGate(t *testing.T) {
	l := newLab(t, 1)
	f := l.files(t)
	saved := t.TempDir()
	sh := func(script string) {
		t.Helper()
		cmd := l.Node.Command(context.Background(), "sh", "-ec", script)
		cmd.Dir = saved
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	sh("ip -4 addr save dev eth0 >addr; ip -4 route save table main >route; ip -4 addr flush dev eth0")
	t.Cleanup(func() { sh("ip addr restore <addr; ip route restore <route") })
	l.startWith(t, "", "-f", f.dir)
	device := func() bool {
		return l.Node.Command(t.Context(), "ip", "link", "show", "wangell0").Run() == nil
	}
	if device() {
		t.Error("there is a gate without a service")
	}
	f.write(t, "a.yaml", manifest(version("a", "1")))
	l.untilThere(t, "a")
	address := l.address(t, "a")
	eventually(t, "the first service answers", func() bool {
		got, err := e2e.Ask(l.Node, address)
		return err == nil && got.Version == "1"
	})
	if !device() {
		t.Error("there is no gate with a service")
	}
}

// untilThere and untilGone wait until the instance has a service, or does not have it.
func (l *lab) untilThere(t *testing.T, name string) { l.untilKnown(t, name, true) }
func (l *lab) untilGone(t *testing.T, name string)  { l.untilKnown(t, name, false) }

func (l *lab) untilKnown(t *testing.T, name string, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("service %s known: %t", name, want), func() bool {
		for _, s := range l.services(t) {
			if s.Service.Name == name {
				return want
			}
		}
		return !want
	})
}

// untilSaid waits until the output of up matches.
func (l *lab) untilSaid(t *testing.T, u *up, ok func(string) bool) {
	t.Helper()
	eventually(t, "words in the log", func() bool { return ok(u.said()) })
}

// untilVersion waits until a service answers with a version. Every request must be answered.
func (l *lab) untilVersion(t *testing.T, name, address, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("version %s of %s", want, name),
		func() bool { return e2e.MustAsk(t, l.Client(), address).Version == want })
}

// Changes of the environment and the image of a warm service lose no request, neither of ab nor of other clients.
func TestChangesUnderLoadLoseNoRequest(t *testing.T) {
	l := newLab(t, 2)
	f := l.files(t)
	f.write(t, "a.yaml", manifest(version("a", "1")))
	l.startWith(t, "", "-f", f.dir)
	address := l.address(t, "a")
	load := l.load(t, address, newConnections)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				ab(t, l.Client(), 500, 4, address, "-l") // answers differ in length
			}
		}
	}()
	for _, change := range []service{version("a", "2"), version("a", "3"), {name: "a", image: otherTag},
		version("a", "4")} {
		want := change.env["VERSION"]
		if change.image != "" {
			want = "of the image"
		}
		f.write(t, "a.yaml", manifest(change))
		l.untilVersion(t, "a", address, want)
		l.until(t, "a", "the end of the old pod", func(s status.Status) bool { return len(s.Pods) == 1 })
		load.GoesOn(t)
	}
	close(stop)
	<-stopped
	load.Stop(t)
}

// An open connection stays with the old pod until it ends, while new ones go to the new pod.
func TestOpenConnectionsStayWithTheOldPodAfterAChange(t *testing.T) {
	l := newLab(t, 1)
	f := l.files(t)
	s := lines("a")
	f.write(t, "a.yaml", manifest(s))
	l.startWith(t, "", "-f", f.dir)
	address := l.address(t, "a")
	old := e2e.MustConverse(t, l.Client(), address)
	s.env["VERSION"] = "2"
	f.write(t, "a.yaml", manifest(s))
	eventually(t, "the new version", func() bool {
		k := e2e.MustConverse(t, l.Client(), address)
		defer k.Close()
		return k.Greeting.Version == "2"
	})
	old.MustEcho(t, "still here")
	if pods := l.service(t, "a").Pods; len(pods) != 2 {
		t.Errorf("pods: %+v, want the old and the new one", pods)
	}
	old.Close()
	l.until(t, "a", "the end of the old pod", hasPod("serving"))
}

// An invalid manifest starts nothing. The message names the file, the line, the field and what to do.
func TestInvalidManifestsAreRefusedWithTheirLine(t *testing.T) {
	l := newLab(t, 1)
	good := manifest(service{name: "good"})
	for _, test := range []struct {
		what, text string
		want       []string
	}{
		{"port out of range", strings.Replace(good, "port: 80\n", "port: 70000\n", 1),
			[]string{"m.yaml:7", "spec.port", "65535"}},
		{"wrong type", strings.Replace(good, "port: 80\n", "port: eighty\n", 1), []string{"m.yaml:7", "spec.port"}},
		{"unknown field", strings.Replace(good, "idleTimeout", "idleTimeOut", 1),
			[]string{"m.yaml:9", "idleTimeOut", "idleTimeout"}},
		{"two services on one address", manifest(service{name: "a", more: "address: 10.46.100.9"},
			service{name: "b", more: "address: 10.46.100.9"}),
			[]string{"m.yaml", "10.46.100.9", "default/a"}},
		{"the same service twice", good + good, []string{"m.yaml", "default/good"}},
		{"an address out of the range", manifest(service{name: "a", more: "address: 192.0.2.1"}),
			[]string{"192.0.2.1", "10.46.100.0/24"}},
		{"no YAML", "{", []string{"m.yaml:1"}},
		{"nothing", "", []string{"m.yaml"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.yaml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := l.wangell("up", "-f", path, "--state-dir", l.state, "--containerd", "own", "--interface", "eth0")
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("up: %v, want exit code 1", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("up says %q, want %q in it", err, want)
				}
			}
			if found := l.processes(); len(found) > 0 {
				t.Errorf("processes are left: %+v", found)
			}
		})
	}
}
