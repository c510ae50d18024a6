// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"fmt"
	"io/fs"
	"strings"

	"wangell.loutres.me/internal/images/image"
)

// mergedDirs are the folders in / that are links into /usr on a merged-usr system.
var mergedDirs = []string{"bin", "lib", "lib64", "sbin"}

// baseFiles returns the files that every image has.
func baseFiles(r Recipe) map[string]image.File {
	files := map[string]image.File{}
	for _, dir := range []string{"/dev", "/etc", "/proc", "/run", "/sys", "/usr", "/var", "/var/lib", "/var/log"} {
		files[dir] = image.File{Mode: fs.ModeDir | 0o755}
	}
	files["/root"] = image.File{Mode: fs.ModeDir | 0o700}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		files[dir] = image.File{Mode: fs.ModeDir | fs.ModeSticky | 0o777}
	}
	for _, dir := range mergedDirs { // merged-usr, as in both distributions
		files["/"+dir] = image.File{Mode: fs.ModeSymlink | 0o777, Link: "usr/" + dir}
		files["/usr/"+dir] = image.File{Mode: fs.ModeDir | 0o755}
	}
	users := append([]User{
		{Name: "root", Home: "/root", Shell: "/bin/sh"},
		{Name: "nobody", ID: 65534, Home: "/nonexistent"},
	}, r.Users...)
	last := map[string]User{}
	var names []string
	for _, u := range users {
		if _, known := last[u.Name]; !known {
			names = append(names, u.Name)
		}
		last[u.Name] = u
	}
	var passwd, group, shadow strings.Builder
	for _, name := range names {
		u := last[name]
		shell, password := u.Shell, "*"
		if shell == "" {
			shell = "/usr/sbin/nologin"
		}
		if u.EmptyPassword {
			password = ""
		}
		fmt.Fprintf(&passwd, "%s:x:%d:%d:%s:%s:%s\n", u.Name, u.ID, u.ID, u.Name, u.Home, shell)
		fmt.Fprintf(&group, "%s:x:%d:\n", u.Name, u.ID)
		fmt.Fprintf(&shadow, "%s:%s:1::::::\n", u.Name, password)
	}
	files["/etc/passwd"] = image.File{Data: []byte(passwd.String())}
	files["/etc/group"] = image.File{Data: []byte(group.String())}
	files["/etc/shadow"] = image.File{Data: []byte(shadow.String()), Mode: 0o640}
	files["/etc/nsswitch.conf"] = image.File{Data: []byte("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")}
	return files
}

// merge returns the place of a path on a merged-usr system.
func merge(name string) string {
	for _, dir := range mergedDirs {
		if name == "/"+dir || strings.HasPrefix(name, "/"+dir+"/") {
			return "/usr" + name
		}
	}
	return name
}

// isSystemDir reports whether a path is among baseFiles, whose modes a package must not change.
func isSystemDir(name string) bool {
	merged := strings.HasPrefix(name, "/usr/") && merge(name[len("/usr"):]) == name && strings.Count(name, "/") == 2
	return strings.Count(name, "/") == 1 || name == "/var/tmp" || merged
}
