// SPDX-License-Identifier: Apache-2.0

// Package lab is the registry of the experiments that the program wangell-lab runs. The experiments are a Go module of
// their own and may import everything; nothing outside lab imports lab.
//
// An experiment is a package that registers itself. Its files have the same names everywhere:
//
//	command.go   the question, the command's help, the registration
//	params.go    the parameters: flags, checks, defaults
//	samples.go   what is measured: the types of the raw data in the JSON report
//	run.go       how it is measured
//	table.go     the report: summary, explanation, tables
//	figure.go    the plot
//
// Packages report, probe, load, onenode, cluster, knative and proxy hold what experiments share. To add an experiment,
// write such a package and import it in lab/cmd/wangell-lab.
package lab
