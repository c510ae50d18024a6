// SPDX-License-Identifier: Apache-2.0

// Package buildinfo tells which Wangell this is.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// Version is the version of the program, as git describe gives it. The Makefile sets it through the
// linker; a plain go build leaves "devel".
var Version = "devel"

// Info is what a report or a user asking for help needs to know about the program.
type Info struct {
	Version string `json:"version"`
	// Commit is the git commit, empty if the build did not record it.
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
}

// Get returns the program's Info.
func Get() Info {
	i := Info{Version: Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				i.Commit = s.Value
			}
		}
	}
	return i
}
