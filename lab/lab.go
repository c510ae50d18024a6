// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/report"
)

// Experiment is a question about Wangell that a measurement answers.
type Experiment struct {
	// Name is the name of the command.
	Name string
	// Question is what the experiment answers, in one line without a full stop. It is the short help.
	Question string
	// Help is the long help; Example has command lines, one per line, indented by two spaces.
	Help, Example string
	// Deprecated is a former name of the command. It still works, and no help shows it.
	Deprecated string
	// Reports are the names of the reports that the experiment writes. The first one has the whole summary.
	Reports []string
	// NewParams returns the default parameters.
	NewParams func() Params
	// Render makes a report again from its saved JSON: with the same samples, but the summary, the texts and the figure
	// of this version of the program.
	Render func(saved *report.Saved) (*report.Report, error)
}

// Params are the parameters of one run of an experiment.
type Params interface {
	// Flags adds a flag for each parameter.
	Flags(flags *pflag.FlagSet)
	// Check reports the first parameter that cannot work. It gets the flags to distinguish a default from a given value.
	Check(flags *pflag.FlagSet) error
	// Run measures. Reports returned together with an error are worth writing too.
	Run(ctx context.Context, out Output) ([]*report.Report, error)
}

// Output receives news of a running experiment. Both functions must be set.
type Output struct {
	// Progress reports that done of total samples have been taken.
	Progress func(done, total int)
	// Log receives one line per sample from experiments that take minutes for each.
	Log func(format string, args ...any)
}

var experiments []Experiment

// Register adds an experiment. It is called from init functions, and panics if a name is taken.
func Register(e Experiment) {
	for _, other := range experiments {
		if other.Name == e.Name {
			panic(fmt.Sprintf("lab: two experiments are called %q", e.Name))
		}
	}
	experiments = append(experiments, e)
	slices.SortFunc(experiments, func(a, b Experiment) int { return strings.Compare(a.Name, b.Name) })
}

// Experiments returns all registered experiments in the order of their names.
func Experiments() []Experiment { return slices.Clone(experiments) }

// ByReport returns the experiment that writes a report.
func ByReport(name string) (Experiment, error) {
	for _, e := range experiments {
		if slices.Contains(e.Reports, name) {
			return e, nil
		}
	}
	return Experiment{}, fmt.Errorf("no experiment writes a report called %q", name)
}
