// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/show/cli"
)

// Every command needs a short and a long description, examples, a group and checked arguments.
func TestEveryCommandIsDocumented(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s: Short %q, Example %q: want both", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
		if cmd.Long == "" && !cmd.Hidden && !cmd.HasSubCommands() && cmd.Name() != "version" && cmd.Name() != "ls" {
			t.Errorf("%s: no long description", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 100 {
				t.Errorf("%s: %q is too long for a terminal", cmd.CommandPath(), line)
			}
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.Contains(line, "wangell") {
				t.Errorf("%s: the example %q does not call wangell", cmd.CommandPath(), line)
			}
		}
		if parent := cmd.Parent(); parent != nil && !parent.HasParent() && !cmd.Hidden && cmd.GroupID == "" {
			t.Errorf("%s: no group in the help", cmd.CommandPath())
		}
		if cmd.Runnable() && cmd.Args == nil {
			t.Errorf("%s: arguments are not checked", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot())
}

func TestExitCodesTellUsageFromFailure(t *testing.T) {
	missing := t.TempDir() + "/none"
	for line, want := range map[string]int{
		"version":                                  cli.ExitOK,
		"version -o json":                          cli.ExitOK,
		"--help":                                   cli.ExitOK,
		"completion bash":                          cli.ExitOK,
		"nonsense":                                 cli.ExitUsage,
		"version -o xml":                           cli.ExitUsage,
		"version extra":                            cli.ExitUsage,
		"version --nonsense":                       cli.ExitUsage,
		"image nonsense":                           cli.ExitUsage,
		"image build":                              cli.ExitUsage,
		"image build hello":                        cli.ExitUsage,
		"image build nginx --out x":                cli.ExitUsage,
		"image analyse":                            cli.ExitUsage,
		"image analyse a --unpackers 0":            cli.ExitUsage,
		"image analyse a b":                        cli.ExitUsage,
		"image convert a":                          cli.ExitUsage,
		"image convert a b --layers split":         cli.ExitUsage,
		"image convert a b --compression lz4":      cli.ExitUsage,
		"image analyse a --via docker":             cli.ExitUsage,
		"image analyse " + missing + ".tar":        cli.ExitError,
		"up":                                       cli.ExitUsage,
		"up -f x --addresses 10.0.0.0/33":          cli.ExitUsage,
		"up -f x --xdp-mode fast":                  cli.ExitUsage,
		"up -f x --run-dir relative":               cli.ExitUsage,
		"up -f " + missing + " -o json":            cli.ExitError,
		"ps --run-dir " + missing:                  cli.ExitError,
		"ps --run-dir " + missing + " -o json":     cli.ExitError,
		"wakes a b":                                cli.ExitUsage,
		"wakes --last -1":                          cli.ExitUsage,
		"logs":                                     cli.ExitUsage,
		"logs x --run-dir " + missing:              cli.ExitError,
		"sleep":                                    cli.ExitUsage,
		"sleep x --run-dir " + missing:             cli.ExitError,
		"ps --log-level loud --run-dir " + missing: cli.ExitError,
		"down --log-level loud":                    cli.ExitUsage,
		"down --log-format xml":                    cli.ExitUsage,
		"daemon":                                   cli.ExitUsage,
		"daemon --server x --key-file " + missing:  cli.ExitError,
	} {
		if got := run(strings.Fields(line)); got != want {
			t.Errorf("wangell %s: exit code %d, want %d", line, got, want)
		}
	}
}

func TestUsageErrorsSayWhatToWrite(t *testing.T) {
	for line, want := range map[string]string{
		"slep":               `unknown command "slep": did you mean sleep?`,
		"nonsense":           `unknown command "nonsense"`,
		"image laod":         `unknown command "laod": did you mean load?`,
		"ps extra":           `unexpected argument "extra"`,
		"sleep":              "name a service, as NAME or NAMESPACE/NAME",
		"exec":               "name a service, as NAME or NAMESPACE/NAME",
		"exec a -c b --":     "name a command to run in the container",
		"exec a --none sh":   "unknown flag: --none",
		"sleep a b":          `unexpected argument "b": name one service`,
		"image load":         "name a tarball, or - for standard input",
		"ps -o yaml":         `invalid argument "yaml" for "-o, --output" flag: want table or json`,
		"down --log-level x": `--log-level "x": want debug, info, warn or error`,
		"up":                 "-f is missing",
	} {
		root := newRoot()
		root.SetArgs(strings.Fields(line))
		err := root.ExecuteContext(t.Context())
		var usage cli.UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), want) {
			t.Errorf("wangell %s: %v, want %q", line, err, want)
		}
	}
}

func TestCompletionOffersValuesOfFlags(t *testing.T) {
	for line, want := range map[string]string{
		"ps -o ":               "table json",
		"wakes --output ":      "table json",
		"image ls -o ":         "table json",
		"image analyse --via ": "containerd cri",
		"up --xdp-mode ":       "auto native generic off",
		"doctor --log-level ":  "debug info warn error",
		"image build ":         "hello",
		"im":                   "image import",
		"image l":              "load ls",
	} {
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, _, _ := strings.Cut(out.String(), ":") // the directive for the shell follows
		if strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("wangell %s: completion offers %q, want %q", line, got, want)
		}
	}
}

func TestVolumesAreCompletedAsTheyAreTyped(t *testing.T) {
	var list []volume.Info
	for _, id := range []string{"default/db.data", "default/web.files", "shop/db.data"} {
		v := volume.ParseID(id)
		list = append(list, volume.Info{Record: volume.Record{Namespace: v.Namespace, Name: v.Name}})
	}
	for typed, want := range map[string]string{
		"":         "default/db.data web.files shop/db.data",
		"default/": "default/db.data default/web.files shop/db.data",
	} {
		if got := volumesToType(list, nil, typed); strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %s", typed, got, want)
		}
	}
	if got := volumesToType(list, []string{"web.files", "shop/db.data"}, ""); strings.Join(got, " ") != "default/db.data" {
		t.Errorf("after two: %q", got)
	}
}

func TestLabRunsTheProgramBesideThisOne(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, err := findLab(); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("no wangell-lab anywhere: error %v, want one that says where to get it", err)
	}
	script := "#!/bin/sh\nprintf 'cold\\tcold requests\\n:4\\n'\n"
	if err := os.WriteFile(filepath.Join(dir, labProgram), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if file, err := findLab(); err != nil || file != filepath.Join(dir, labProgram) {
		t.Errorf("%s, %v", file, err)
	}
	words, directive := completeLab(nil, nil, "c")
	if len(words) != 1 || words[0] != "cold\tcold requests" || directive != cobra.ShellCompDirectiveNoFileComp {
		t.Errorf("completion: %q, %d", words, directive)
	}
}
