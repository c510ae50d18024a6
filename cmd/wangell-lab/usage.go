// SPDX-License-Identifier: Apache-2.0

package main

// usageError is an invalid command line.
type usageError struct {
	command string // the command whose help explains it
	error
}

func (e usageError) Unwrap() error { return e.error }
