// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandHelps: each command says what it does and how it is typed.
func TestEveryCommandHelps(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("%s: Short %q, Example %q: both are wanted", cmd.CommandPath(), cmd.Short, cmd.Example)
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
			t.Errorf("%s: takes any arguments", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot())
}

func TestExitCodes(t *testing.T) {
	missing := t.TempDir() + "/none"
	for line, want := range map[string]int{
		"version":                              exitOK,
		"version -o json":                      exitOK,
		"--help":                               exitOK,
		"completion bash":                      exitOK,
		"nonsense":                             exitUsage,
		"version -o xml":                       exitUsage,
		"version extra":                        exitUsage,
		"version --nonsense":                   exitUsage,
		"image nonsense":                       exitUsage,
		"image build":                          exitUsage,
		"image build hello":                    exitUsage,
		"image build nginx --out x":            exitUsage,
		"lab cold":                             exitUsage,
		"lab cold --out x --requests 0":        exitUsage,
		"lab cold --out x --image y":           exitUsage,
		"lab nonsense":                         exitUsage,
		"up":                                   exitUsage,
		"up -f x --addresses 10.0.0.0/33":      exitUsage,
		"up -f x --xdp-mode fast":              exitUsage,
		"up -f x --run-dir relative":           exitUsage,
		"up -f " + missing + " -o json":        exitError,
		"ps --run-dir " + missing:              exitError,
		"ps --run-dir " + missing + " -o json": exitError,
		"wakes a b":                            exitUsage,
		"wakes --last -1":                      exitUsage,
		"logs":                                 exitUsage,
		"logs x --run-dir " + missing:          exitError,
		"sleep":                                exitUsage,
		"sleep x --run-dir " + missing:         exitError,
		"ps --log-level loud --run-dir " + missing: exitError,
		"down --log-level loud":                    exitUsage,
		"down --log-format xml":                    exitUsage,
		"daemon":                                   exitUsage,
		"daemon --server x --key-file " + missing:  exitError,
	} {
		if got := run(strings.Fields(line)); got != want {
			t.Errorf("wangell %s: exit code %d, want %d", line, got, want)
		}
	}
}
