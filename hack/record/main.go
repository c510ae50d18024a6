// SPDX-License-Identifier: Apache-2.0

// Command record runs a command and writes what it printed as an animated SVG: each line appears when it was printed.
//
//	go run ./hack/record --title 'make demo' --out docs/demo.svg -- hack/demo.sh
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", "", "the SVG to write")
	title := flag.String("title", "", "the command as a reader would type it, shown first")
	rows := flag.Int("rows", 26, "lines that are visible at once")
	cols := flag.Int("cols", 110, "characters in a line; longer lines are cut")
	pause := flag.Duration("max-pause", 1500*time.Millisecond, "longer pauses between lines are cut to this")
	from := flag.String("from", "", "a regular expression: leave out what is printed before the first line that matches")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: record --out FILE.svg [flags] -- COMMAND [ARG ...]")
		flag.PrintDefaults()
		os.Exit(2)
	}
	if err := run(*out, *title, *from, *pause, screen{rows: *rows, cols: *cols}, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(out, title, from string, pause time.Duration, s screen, command []string) error {
	first, err := regexp.Compile(from)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	lines, err := record(command, os.Stdout)
	if err != nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	for len(lines) > 0 && !first.MatchString(lines[0].text) {
		lines = lines[1:]
	}
	if len(lines) == 0 {
		return fmt.Errorf("--from %q: no line of the output matches", from)
	}
	if title != "" {
		lines = append([]line{{text: "$ " + title, at: lines[0].at}}, lines...)
	}
	return os.WriteFile(out, s.svg(compress(lines, pause)), 0o644)
}

// record runs a command and returns the lines it prints on either stream; it also copies them to echo.
func record(command []string, echo io.Writer) ([]line, error) {
	cmd := exec.Command(command[0], command[1:]...)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	w.Close()
	var lines []line
	begin := time.Now()
	in := bufio.NewScanner(r)
	for in.Scan() {
		lines = append(lines, line{text: strings.TrimRight(in.Text(), " \r"), at: time.Since(begin)})
		fmt.Fprintln(echo, in.Text())
	}
	return lines, errors.Join(in.Err(), cmd.Wait())
}
