// SPDX-License-Identifier: Apache-2.0

package main

import "wangell.loutres.me/internal/show/cli"

// Short names for the parts that the command lines of all programs share.
var (
	usage           = cli.Usage
	noArgs          = cli.NoArgs
	onlySubcommands = cli.OnlySubcommands
	completeValues  = cli.CompleteValues
	oneOf           = cli.OneOf
)

// output is the value of the flag -o.
type output = cli.Output
