// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Output is the value of the flag -o.
type Output string

// The formats.
const (
	OutputTable Output = "table"
	OutputJSON  Output = "json"
)

var outputs = []string{string(OutputTable), string(OutputJSON)}

// register adds -o to a command's flags.
func (o *Output) register(flags *pflag.FlagSet) {
	*o = OutputTable
	flags.VarP(o, "output", "o", OneOf(outputs))
}

// RegisterTo adds -o, with completion, to a command.
func (o *Output) RegisterTo(cmd *cobra.Command) {
	o.register(cmd.Flags())
	CompleteValues(cmd, "output", outputs)
}

// String implements pflag.Value.
func (o *Output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *Output) Type() string { return "format" }

// Set implements pflag.Value.
func (o *Output) Set(s string) error {
	switch Output(s) {
	case OutputTable, OutputJSON:
		*o = Output(s)
		return nil
	}
	return fmt.Errorf("want %s", OneOf(outputs))
}

// PrintJSON writes v, indented, and a newline to standard output.
func PrintJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
