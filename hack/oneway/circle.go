// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// use is a name in one file that another file of the package declares.
type use struct {
	from, to string
	name     string
	line     int
}

// circlesOf returns the sets of files each of which reaches every other one of its set, in the order of their names.
func circlesOf(uses []use) [][]string {
	reach := map[string]map[string]bool{}
	for _, u := range uses {
		if reach[u.from] == nil {
			reach[u.from] = map[string]bool{}
		}
		reach[u.from][u.to] = true
	}
	// Packages have some dozens of files: the closure needs no better algorithm than Warshall's.
	for via := range reach {
		for from := range reach {
			if reach[from][via] {
				for to := range reach[via] {
					reach[from][to] = true
				}
			}
		}
	}
	var circles [][]string
	files := slices.Sorted(maps.Keys(reach))
	for _, first := range files {
		var circle []string
		for _, file := range files {
			if reach[first][file] && reach[file][first] {
				circle = append(circle, file)
			}
		}
		if len(circle) > 0 && circle[0] == first {
			circles = append(circles, circle)
		}
	}
	return circles
}

// report prints a circle and the uses that make it: one for each pair of files, or all.
func report(w io.Writer, dir string, circle []string, uses []use, verbose bool) {
	if wd, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(wd, dir); err == nil {
			dir = relative
		}
	}
	fmt.Fprintf(w, "%s: files refer to each other in a circle: %s\n", dir, strings.Join(circle, ", "))
	inside := slices.DeleteFunc(slices.Clone(uses), func(u use) bool {
		return !slices.Contains(circle, u.from) || !slices.Contains(circle, u.to)
	})
	slices.SortFunc(inside, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.line, b.line),
			cmp.Compare(a.name, b.name))
	})
	for i, u := range inside {
		if verbose || i == 0 || u.from != inside[i-1].from || u.to != inside[i-1].to {
			fmt.Fprintf(w, "\t%s:%d uses %s of %s\n", u.from, u.line, u.name, u.to)
		}
	}
}
