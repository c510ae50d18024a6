// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"fmt"

	"wangell.loutres.me/internal/images/image"
)

// Recipe describes an image.
type Recipe struct {
	// Name is a short name, which is part of Tag.
	Name string
	// Packages are names of packages. Their dependencies are added, without recommended packages. The machine's apt
	// sources determine the versions.
	Packages []string
	// Without are patterns (path.Match) of dependencies to leave out. Packages that only maintainer scripts need are
	// always left out.
	Without []string
	// Suite is a release of Debian, such as trixie, from which the packages come instead of the machine's sources. It
	// needs Debian, whose archive it is in. Empty: the machine's sources.
	Suite string `json:",omitempty"`
	// Users are added to root and nobody, or replace them.
	Users []User
	// Files are added, or replace files of packages. Keys are absolute paths.
	Files map[string]image.File
	// Entrypoint is the command. Env holds entries "NAME=value". User is "uid:gid", empty for root.
	Entrypoint, Env []string
	User            string
	// Volumes are folders that the image declares as volumes.
	Volumes []string `json:",omitempty"`
	// Port is the TCP port on which the server listens, 0 for none.
	Port int
	// StopSignal is the signal that stops the server. Empty: SIGTERM.
	StopSignal string
}

// User is an account in the image. Its group has the same name and number.
type User struct {
	Name  string
	ID    int
	Home  string
	Shell string // empty: /usr/sbin/nologin
	// EmptyPassword lets the user log in without a password.
	EmptyPassword bool
}

// Package is a package and its version.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Tag returns the reference of the image: "wangell.local/NAME:debian".
func (r Recipe) Tag() string { return "wangell.local/" + r.Name + ":debian" }

func ports(r Recipe) []string {
	if r.Port == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d/tcp", r.Port)}
}
