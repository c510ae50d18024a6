// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/machine/compose"
)

// importFlags holds the flags of import.
type importFlags struct {
	options compose.Options
	out     string
	notes   string
	strict  bool
}

func newImport() *cobra.Command {
	f := &importFlags{}
	cmd := &cobra.Command{
		Use:   "import [FILE...]",
		Short: "Write manifests from a Compose file",
		Long: `Write the manifests of a Compose file's services, for 'wangell up', and list on standard
error what could not be translated, and what was assumed. Files, with overriding ones after
the first, their includes, .env files and profiles are read as Compose does. Without FILE
it is compose.yaml in this folder or one above; - is standard input.

Each service sleeps until a connection comes. Services reach each other by their names.
The first published port becomes hostPort, named volumes become persistent volumes, and
health checks readinessProbes. Images are not built.`,
		GroupID: groupRun,
		Example: `  wangell import -o services.yaml && sudo wangell up -f services.yaml
  wangell import compose.yaml compose.prod.yaml --env-file prod.env --strict -o services.yaml
  cat compose.yaml | wangell import - | sudo wangell up -f -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "output", "o", "-", "file for the manifests; - for standard output")
	flags.StringVar(&f.notes, "notes", "text", oneOf([]string{"text", "json"})+": how the list is written")
	flags.BoolVar(&f.strict, "strict", false, "write nothing if something could not be translated")
	flags.StringArrayVar(&f.options.EnvFiles, "env-file", nil, "file with variables (repeatable; default: .env)")
	flags.StringArrayVar(&f.options.Profiles, "profile", nil, "profile to enable (repeatable); * for all")
	flags.StringVarP(&f.options.Namespace, "namespace", "n", "", "namespace of the services")
	completeValues(cmd, "notes", []string{"text", "json"})
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command, files []string) error {
	if f.notes != "text" && f.notes != "json" {
		return usage(cmd, "--notes %q: want text or json", f.notes)
	}
	f.options.Files, f.options.Env = files, os.Environ()
	project, err := compose.Load(cmd.Context(), f.options)
	if err != nil {
		return err
	}
	services, notes, err := compose.Translate(project, f.options)
	lost := f.print(notes)
	switch {
	case err != nil:
		return err
	case lost && f.strict:
		return errors.New("something could not be translated: nothing was written; leave out --strict to go on")
	}
	var text bytes.Buffer
	if err := compose.Write(&text, services); err != nil {
		return err
	}
	if f.out == "-" {
		_, err = os.Stdout.Write(text.Bytes())
		return err
	}
	return atomicfile.Into(f.out, 0o600, func(w io.Writer) error {
		_, err := w.Write(text.Bytes())
		return err
	})
}

// print writes the list to standard error, and reports whether something was lost.
func (f *importFlags) print(notes []compose.Note) (lost bool) {
	for _, n := range notes {
		lost = lost || n.Lost
	}
	if f.notes == "json" {
		e := json.NewEncoder(os.Stderr)
		for _, n := range notes {
			_ = e.Encode(n) // standard error
		}
		return lost
	}
	for _, kind := range []struct {
		title string
		lost  bool
	}{{"not translated:", true}, {"assumed:", false}} {
		title := kind.title + "\n"
		for _, n := range notes {
			if n.Lost == kind.lost {
				fmt.Fprint(os.Stderr, title, "  ", n, "\n")
				title = ""
			}
		}
	}
	return lost
}
