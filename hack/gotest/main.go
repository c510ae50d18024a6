// SPDX-License-Identifier: Apache-2.0

// Command gotest runs "go test -json" and prints the parts that a person needs: a line per package, the full output
// of tests that failed, every skipped test with its reason, and as the closing line the totals. It exits with status
// 1 if a test failed, and in CI (environment variable CI) also if one was skipped, because a skipped test proves
// nothing.
//
//	go run ./hack/gotest -label unit -- -race ./...
//	go run ./hack/gotest -sum FILE         # adds up the runs that were recorded in GOTEST_TOTALS=FILE
//	go run ./hack/gotest -table FILE...    # Markdown table of the tests that failed in some of the repeated runs
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
)

func main() {
	label := flag.String("label", "tests", "name of this run, for the closing line")
	allow := flag.String("allow", "", "regular expression of reasons for which a test may be skipped in CI")
	sum := flag.String("sum", "", "print the sum of the runs recorded in this file, and run nothing")
	table := flag.Bool("table", false, "print how often which test failed in the runs recorded in the given files")
	flag.Parse()
	err := error(nil)
	switch {
	case *sum != "":
		err = printSum(os.Stdout, *sum, os.Getenv("CI") != "")
	case *table:
		err = printTable(os.Stdout, flag.Args())
	default:
		err = run(*label, *allow, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

// run starts go test with the arguments, reports on its output, and returns an error unless the run counts as passed.
func run(label, allow string, args []string) error {
	allowed, err := regexp.Compile(allow)
	if err != nil {
		return fmt.Errorf("-allow: %w", err)
	}
	if allow == "" {
		allowed = nil
	}
	goTool := os.Getenv("GO")
	if goTool == "" {
		goTool = "go"
	}
	cmd := exec.Command(goTool, testArgs(args)...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := newReport(os.Stdout, allowed)
	r.read(stdout)
	waitErr := cmd.Wait()
	t := r.close(label)
	if file := os.Getenv("GOTEST_TOTALS"); file != "" {
		if err := record(file, recorded{totals: t, Failures: r.failures}); err != nil {
			return err
		}
	}
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) {
		return waitErr
	}
	return t.verdict(waitErr != nil, os.Getenv("CI") != "")
}

// testArgs puts test and -json in front of the arguments, after a -C, which go wants first.
func testArgs(args []string) []string {
	out := []string{"test"}
	if len(args) > 1 && args[0] == "-C" {
		out, args = append(out, args[0], args[1]), args[2:]
	}
	return append(append(out, "-json"), args...)
}
