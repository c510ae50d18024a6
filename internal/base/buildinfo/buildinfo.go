// SPDX-License-Identifier: Apache-2.0

// Package buildinfo holds the version of the program and how it was built.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// Version is the version of the program: the release in the file VERSION, with the commit as build metadata in
// development builds, such as v0.3.0+gde681fd. The Makefile sets it through the linker; plain go build leaves "devel".
var Version = "devel"

// commit is set through the linker by a release, which is built without version control information.
var commit string

// Info describes the program in reports and in requests for help.
type Info struct {
	Version string `json:"version"`
	// Commit is the git commit; empty if the build did not record it.
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
}

// Get returns the program's Info.
func Get() Info {
	i := Info{Version: Version, Commit: commit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" && commit == "" {
				i.Commit = s.Value
			}
		}
	}
	return i
}
