// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
)

func TestEveryCommandIsDocumentedForKubectl(t *testing.T) {
	root := newRoot()
	for _, cmd := range append(root.Commands(), root) {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" || cmd.Args == nil {
			t.Errorf("%s: a description, examples or a check of arguments is missing", cmd.CommandPath())
		}
		text := cmd.Short + cmd.Long + cmd.Example
		if strings.Contains(text, "wangell up") || strings.Contains(text, "sudo") {
			t.Errorf("%s: its help is about one machine:\n%s", cmd.CommandPath(), text)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.Contains(line, "kubectl wangell") {
				t.Errorf("%s: the example %q does not call kubectl wangell", cmd.CommandPath(), line)
			}
		}
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 100 {
				t.Errorf("%s: %q is too long for a terminal", cmd.CommandPath(), line)
			}
		}
	}
	var names []string
	for _, cmd := range root.Commands() {
		names = append(names, cmd.Name())
	}
	slices.Sort(names)
	want := []string{"dashboard", "doctor", "logs", "port-forward", "ps", "rollout", "sleep", "top", "wake", "wakes",
		"why"}
	if !slices.Equal(names, want) {
		t.Errorf("commands %v, want %v", names, want)
	}
}

func TestNamesGetTheNamespaceOfTheFlags(t *testing.T) {
	for _, e := range []struct {
		names []string
		all   bool
		full  string
		scope string
	}{
		{nil, false, "", "team"},
		{nil, true, "", ""},
		{[]string{"a"}, false, "team/a", "team"},
		{[]string{"red/a"}, false, "red/a", "red"},
		{[]string{"a", "red/b"}, false, "team/a red/b", ""},
		{[]string{"a", "b"}, false, "team/a team/b", "team"},
	} {
		full, scope := qualify(e.names, "team", e.all)
		if strings.Join(full, " ") != e.full || scope != e.scope {
			t.Errorf("%v, all %v: %v in %q, want %s in %q", e.names, e.all, full, scope, e.full, e.scope)
		}
	}
}

func TestKubectlCompletesByAnotherName(t *testing.T) {
	if got := arguments([]string{"/bin/kubectl_complete-wangell", "why", "h"}); !slices.Equal(got,
		[]string{"__complete", "why", "h"}) {
		t.Error(got)
	}
	if got := arguments([]string{"kubectl-wangell", "ps"}); !slices.Equal(got, []string{"ps"}) {
		t.Error(got)
	}
}

// The flags are the flags of kubectl, and mistakes in them differ from failures by their exit code.
func TestFlagsAreThoseOfKubectl(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	config := `{"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
		"contexts": [{"name": "a", "context": {"cluster": "c", "namespace": "one"}},
			{"name": "b", "context": {"cluster": "c", "namespace": "two"}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]int{
		"ps --kubeconfig " + file:                      cli.ExitError, // nothing listens
		"ps --kubeconfig " + file + " --context none":  cli.ExitError,
		"ps --kubeconfig " + file + " --controller x":  cli.ExitUsage,
		"ps --nonsense":                                cli.ExitUsage,
		"why --kubeconfig " + file:                     cli.ExitUsage,
		"port-forward hello":                           cli.ExitUsage,
		"port-forward hello x:80":                      cli.ExitUsage,
		"port-forward --kubeconfig " + file + " a :80": cli.ExitError,
		"nonsense": cli.ExitUsage,
		"top --kubeconfig " + file + " --interval 1ms": cli.ExitUsage,
		"--help":          cli.ExitOK,
		"completion bash": cli.ExitOK,
		"__complete ps --kubeconfig " + file + " --context ":     cli.ExitOK,
		"ps --kubeconfig " + file + " -n x -A -o json --token t": cli.ExitError,
	} {
		if got := cli.Run(newRoot(), strings.Split(line, " ")); got != want {
			t.Errorf("%s: exit code %d, want %d", line, got, want)
		}
	}
	for flags, want := range map[string]string{"": "one", "--context b": "two", "--context b -n three": "three"} {
		var namespace string
		c := newCluster()
		cmd := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) (err error) {
			_, namespace, err = c.config()
			return err
		}}
		c.register(cmd)
		if code := cli.Run(cmd, strings.Fields("--kubeconfig "+file+" "+flags)); code != 0 || namespace != want {
			t.Errorf("%s: namespace %q, want %q", flags, namespace, want)
		}
	}
}
