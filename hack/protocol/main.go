// SPDX-License-Identifier: Apache-2.0

// Command protocol writes the tables of messages of the wire protocol in Markdown, from the source of a package: the
// order and sizes of fields are those of the decode methods, which the package's tests hold to the encoders, and the
// meanings are the comments of the structs' fields. It knows neither the package's files nor its messages.
//
// Usage: protocol PACKAGE-FOLDER PAGE
package main

//go:generate go run . ../../internal/wire ../../docs/protocol/messages.md

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: protocol PACKAGE-FOLDER PAGE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "protocol:", err)
		os.Exit(1)
	}
}

// write writes the page of the package in a folder.
func write(folder, page string) error {
	s, err := load(folder)
	if err != nil {
		return err
	}
	return os.WriteFile(page, s.page(), 0o644)
}
