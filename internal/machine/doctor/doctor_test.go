// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

func TestKernelsBefore66AreMissing(t *testing.T) {
	for release, want := range map[string]State{
		"6.6.0": OK, "6.18.44-fc-v657": OK, "7.0.0-rc1": OK, "6.5.13": Missing, "5.15.0-100-generic": Missing,
		"": Skipped, "unknown": Skipped,
	} {
		if got := kernelVersion(release).State; got != want {
			t.Errorf("kernelVersion(%q) = %s, want %s", release, got, want)
		}
	}
}

func TestMissingCapabilitiesAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001fffeffffff\n")
	got, err := effectiveCapabilities(file)
	if err != nil {
		t.Fatal(err)
	}
	if got&(1<<unix.CAP_SYS_RESOURCE) != 0 || got&(1<<unix.CAP_BPF) == 0 {
		t.Errorf("capabilities %#x: want CAP_BPF and no CAP_SYS_RESOURCE", got)
	}
	for _, c := range rights(file) {
		want := OK
		if c.Name == "CAP_SYS_RESOURCE" {
			want = Warn
		}
		if strings.HasPrefix(c.Name, "CAP_") && c.State != want {
			t.Errorf("%s: %s, want %s", c.Name, c.State, want)
		}
	}
	write("Name:\tx\n")
	if _, err := effectiveCapabilities(file); err == nil {
		t.Error("no error for a status file without CapEff")
	}
	write("CapEff:\tzz\n")
	if _, err := effectiveCapabilities(file); err == nil {
		t.Error("no error for a CapEff that is not a number")
	}
}

func TestCgroupsOfAnEmptyFolderAreMissing(t *testing.T) {
	if c := cgroups(t.TempDir()); !c.Bad() {
		t.Errorf("got %+v, want a required check that is missing", c)
	}
}

func TestProgramMustRunAndPrintItsVersion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	script := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script("wg-good", "echo; echo 'wg-good:'; echo '  Version: 1.2.3'\n")
	script("wg-bad", "exit 3\n")
	ctx := context.Background()
	if c := program(ctx, Check{}, "wg-good"); c.State != OK || c.Found != "Version: 1.2.3" {
		t.Errorf("good program: %+v", c)
	}
	if c := program(ctx, Check{}, "wg-bad"); c.State != Missing || !strings.Contains(c.Found, "exit status 3") {
		t.Errorf("bad program: %+v", c)
	}
	if c := program(ctx, Check{}, "wg-none"); c.State != Missing {
		t.Errorf("missing program: %+v", c)
	}
}

func TestTableShowsGroupsAndWhatToDo(t *testing.T) {
	checks := []Check{
		{Name: "a", Group: Kernel, State: OK, Required: true, Found: "6.18"},
		{Name: "b", Group: Gate, State: Missing, Required: true, Found: strings.Repeat("x\n", 500), Do: "boot another"},
		{Name: "c", Group: Gate, State: Warn, Do: "nothing"},
	}
	var out bytes.Buffer
	if err := WriteTable(&out, checks); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"KERNEL", "GATE", "✓ a", "✗ b", "! c", "→ boot another"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, &out)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 7 {
		t.Errorf("table has %d lines, want 7:\n%s", n, &out)
	}
}

func TestSummaryNamesRequiredChecksThatFailed(t *testing.T) {
	good := Check{Name: "a", State: Warn, Required: true}
	bad := Check{Name: "b", State: Skipped, Required: true}
	if got := Summary([]Check{good}); !strings.Contains(got, "everything") {
		t.Errorf("nothing failed: %q", got)
	}
	if got := Summary([]Check{good, bad}); got != "1 required check failed: b" {
		t.Errorf("one failed: %q", got)
	}
}

// The test runs every check for real and compares the machine before and after.
func TestRunLeavesNothingBehind(t *testing.T) {
	need.Root(t)
	type state struct {
		Links []string
		Netns string
	}
	look := func() state {
		t.Helper()
		var s state
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			s.Links = append(s.Links, l.Attrs().Name)
		}
		slices.Sort(s.Links)
		if s.Netns, err = os.Readlink("/proc/self/ns/net"); err != nil {
			t.Fatal(err)
		}
		return s
	}
	inNewNamespace(t, func() {
		before := look()
		checks := Run(context.Background(), Options{})
		after := look()
		a, _ := json.Marshal(before)
		b, _ := json.Marshal(after)
		if !bytes.Equal(a, b) {
			t.Errorf("before %s\nafter  %s", a, b)
		}
		if len(checks) < 20 {
			t.Errorf("%d checks only", len(checks))
		}
		for _, c := range checks {
			if c.Name == "" || c.For == "" || c.State == "" {
				t.Errorf("incomplete check %+v", c)
			}
			t.Logf("%-7s %s: %s", c.State, c.Name, c.Found)
		}
	})
}

// inNewNamespace calls f in a network namespace without the devices of tests that run at the same time.
func inNewNamespace(t *testing.T, f func()) {
	t.Helper()
	if err := inScratch(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestThreadReturnsFromScratchNamespace(t *testing.T) {
	need.Root(t)
	var inside string
	err := inScratch(func() error {
		var err error
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	outside, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if inside == outside {
		t.Errorf("scratch namespace %s is the process's own", inside)
	}
}
