// SPDX-License-Identifier: Apache-2.0

package main

import "wangell.loutres.me/internal/show/commands"

// Groups of commands in the help.
const (
	groupRun     = commands.GroupRun
	groupLook    = commands.GroupLook
	groupMachine = "machine"
)
