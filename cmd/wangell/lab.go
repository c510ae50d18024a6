// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// labProgram is the program behind `wangell lab`.
const labProgram = "wangell-lab"

// newLab passes its command line to another program: experiments need plots, load generators and test clusters, which
// the daemon must not carry.
func newLab() *cobra.Command {
	return &cobra.Command{
		Use:   "lab",
		Short: "Measure Wangell on this machine (runs wangell-lab)",
		Long: `Lab runs the program wangell-lab, which measures Wangell: 'wangell lab cold' is
'wangell-lab cold'. It is looked for beside this program, then in $PATH.`,
		GroupID: groupMachine,
		Example: `  sudo wangell lab cold --out out
  sudo wangell lab capacity --out out`,
		Args:               cobra.ArbitraryArgs,
		DisableFlagParsing: true,
		ValidArgsFunction:  completeLab,
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := findLab()
			if err != nil {
				return err
			}
			err = syscall.Exec(program, append([]string{labProgram}, args...), os.Environ())
			return fmt.Errorf("run %s: %w", program, err)
		},
	}
}

// findLab returns the wangell-lab in the folder of this program, or the one in $PATH.
func findLab() (string, error) {
	if self, err := os.Executable(); err == nil {
		if file, err := exec.LookPath(filepath.Join(filepath.Dir(self), labProgram)); err == nil {
			return file, nil
		}
	}
	file, err := exec.LookPath(labProgram)
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New(labProgram + " is neither beside this program nor in $PATH: it is a program of its own; " +
			"run `make build` in Wangell's source tree, which leaves it in bin/")
	}
	return file, err
}

// completeLab lets wangell-lab complete its own command line.
func completeLab(_ *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	program, err := findLab()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	request := append(append([]string{cobra.ShellCompRequestCmd}, args...), toComplete)
	out, err := exec.Command(program, request...).Output()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	// The last line is the directive, as ":4".
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	var directive cobra.ShellCompDirective
	if _, err := fmt.Sscanf(lines[len(lines)-1], ":%d", &directive); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:len(lines)-1], directive
}
