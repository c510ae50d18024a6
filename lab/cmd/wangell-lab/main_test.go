// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func TestEveryCommandHasHelpAndExamples(t *testing.T) {
	for _, cmd := range append(newRoot().Commands(), newRoot()) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		if cmd.Short == "" || cmd.Example == "" || cmd.Args == nil {
			t.Errorf("%s: Short %q, Example %q, Args set: %t", cmd.CommandPath(), cmd.Short, cmd.Example, cmd.Args != nil)
		}
		for line := range strings.Lines(strings.ReplaceAll(cmd.Example, "\\\n", "")) {
			if !strings.Contains(line, "wangell-lab "+cmd.Name()) && cmd.HasParent() && !cmd.Hidden {
				t.Errorf("%s: the example %q does not call it", cmd.CommandPath(), line)
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	for line, want := range map[string]int{
		"--help":                        cli.ExitOK,
		"completion bash":               cli.ExitOK,
		"nonsense":                      cli.ExitUsage,
		"cold":                          cli.ExitUsage,
		"cold extra":                    cli.ExitUsage,
		"cold --nonsense":               cli.ExitUsage,
		"cold --out x --requests 0":     cli.ExitUsage,
		"cold --out x --image y":        cli.ExitUsage,
		"cold --out x -o xml":           cli.ExitUsage,
		"capacity --out x --services 0": cli.ExitUsage,
		"scale --out x --services 0":    cli.ExitUsage,
		"knative --out x":               cli.ExitUsage,
		"scaling --out x --parts z":     cli.ExitUsage,
		"balance --out x":               cli.ExitUsage,
		"fleet --out x --daemons 1":     cli.ExitUsage,
		"flood --out x --rate 3000000":  cli.ExitUsage,
		"strangers --out x --rate 0":    cli.ExitUsage,
		"pull --out x --size huge":      cli.ExitUsage,
		"pull --out x --link 1mb":       cli.ExitUsage,
		"pull --out x --rounds 0":       cli.ExitUsage,
		"pull --out x --images lzma":    cli.ExitUsage,
		"storage --out x --workload db": cli.ExitUsage,
		"render":                        cli.ExitUsage,
		"render missing.json":           cli.ExitError,
	} {
		if got := run(strings.Fields(line)); got != want {
			t.Errorf("wangell-lab %s: exit code %d, want %d", line, got, want)
		}
	}
}

func TestFormerNameIsHidden(t *testing.T) {
	cmd, _, err := newRoot().Find([]string{"scale"})
	if err != nil || !cmd.Hidden || cmd.Deprecated == "" {
		t.Errorf("scale: %v, hidden %t, %q", err, cmd.Hidden, cmd.Deprecated)
	}
}

func TestExperimentsAskQuestions(t *testing.T) {
	if len(lab.Experiments()) != 12 {
		t.Errorf("%d experiments", len(lab.Experiments()))
	}
	for _, e := range lab.Experiments() {
		if !strings.HasSuffix(e.Question, "?") {
			t.Errorf("%s: %q is not a question", e.Name, e.Question)
		}
		if cmd := newExperiment(e, e.Name); !strings.Contains(cmd.UsageString(), "--out") {
			t.Errorf("%s has no --out", e.Name)
		}
	}
}

// committed is the folder of the committed reports.
const committed = "../../../docs/experiments"

// TestCommittedReportsAreUpToDate renders every committed report again: the Markdown must be what this version of the
// program writes, and the numbers of the summary must follow from the samples.
func TestCommittedReportsAreUpToDate(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(committed, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: no reports in %s", err, committed)
	}
	for _, file := range files {
		if filepath.Base(file) == "packets.json" { // written by the gate's benchmarks
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, err := render(file)
			if err != nil {
				t.Fatal(err)
			}
			md, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".md")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(md, r.Markdown()) {
				t.Errorf("the Markdown is stale: go run ./lab/cmd/wangell-lab render %s", strings.TrimPrefix(file, "../../"))
			}
			var saved struct{ Summary json.RawMessage }
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(data, &saved); err != nil {
				t.Fatal(err)
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, saved.Summary); err != nil {
				t.Fatal(err)
			}
			if summary, err := json.Marshal(r.Summary); err != nil || !bytes.Equal(summary, compact.Bytes()) {
				t.Errorf("the summary does not follow from the samples:\n%s\nwant:\n%s", compact.Bytes(), summary)
			}
		})
	}
}

// Every committed report begins with its answer in two sentences, then the figure, then a short table.
func TestCommittedReportsBeginWithTheAnswer(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(committed, "*.md"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%v: %d reports in %s", err, len(files), committed)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if name == "README.md" {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, after, found := strings.Cut(string(data), "\n|")
		if !found {
			t.Errorf("%s: no table", name)
			continue
		}
		rows := -2 // its header
		for line := range strings.Lines("|" + after) {
			if !strings.HasPrefix(line, "|") {
				break
			}
			rows++
		}
		if rows < 1 || rows > report.MaxQuoted {
			t.Errorf("%s: its first table has %d rows, want 1 to %d", name, rows, report.MaxQuoted)
		}
		_, answer, _ := strings.Cut(before, "\n") // without the title
		answer, _, figure := strings.Cut(answer, "![")
		if n := len(sentence.FindAllString(answer+" ", -1)); n < 2 || n > 2 && figure {
			t.Errorf("%s: %d sentences before its first table, want an answer in two: %q", name, n, answer)
		}
	}
}

// sentence is the end of one.
var sentence = regexp.MustCompile(`[a-z0-9%)]\.\s`)

// A key that no report has would leave a sentence or a row out of all of them.
func TestAnswersNameKeysThatReportsHave(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(committed, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if filepath.Base(file) == "packets.json" {
			continue
		}
		r, err := render(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(r.Answer.Quoted); len(r.Answer.Sentences) != 2 || n == 0 || n > report.MaxQuoted {
			t.Errorf("%s: %d sentences, %d quoted keys", r.Name, len(r.Answer.Sentences), n)
		}
		for _, key := range r.Answer.Quoted {
			if math.IsNaN(r.Summary.Get(key)) {
				t.Errorf("%s quotes %s, which it does not have", r.Name, key)
			}
		}
	}
}
