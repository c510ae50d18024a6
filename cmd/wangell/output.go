// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// output is the value of the flag -o.
type output string

const (
	outputTable output = "table"
	outputJSON  output = "json"
)

var outputs = []string{string(outputTable), string(outputJSON)}

// register adds -o to a command's flags.
func (o *output) register(flags *pflag.FlagSet) {
	*o = outputTable
	flags.VarP(o, "output", "o", oneOf(outputs))
}

// registerTo adds -o, with completion, to a command.
func (o *output) registerTo(cmd *cobra.Command) {
	o.register(cmd.Flags())
	completeValues(cmd, "output", outputs)
}

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *output) Type() string { return "format" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	switch output(s) {
	case outputTable, outputJSON:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("want %s", oneOf(outputs))
}

// printJSON writes v, indented, and a newline to standard output.
func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
