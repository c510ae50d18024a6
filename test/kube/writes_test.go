// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write is a request that changed something, as the API server's audit log has it.
type write struct {
	Verb      string
	UserAgent string
	ObjectRef struct{ Resource, Subresource, Name, Namespace string }
	Status    struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// String returns what was written, and by which program: "update deployments/status by deployment-controller".
func (w write) String() string {
	what := w.ObjectRef.Resource
	if w.ObjectRef.Subresource != "" {
		what += "/" + w.ObjectRef.Subresource
	}
	program, _, _ := strings.Cut(w.UserAgent, "/")
	if _, part, ok := strings.Cut(w.UserAgent, "/system:serviceaccount:kube-system:"); ok {
		program = part // of kube-controller-manager
	}
	return w.Verb + " " + what + " by " + program
}

// audit is a place in the API server's audit log.
type audit struct{ offset int64 }

func auditLog() string { return filepath.Join(lab.dir, "control", "log", "audit.log") }

// auditFrom returns the present end of the audit log.
func auditFrom(t *testing.T) audit {
	t.Helper()
	info, err := os.Stat(auditLog())
	if err != nil {
		t.Fatal(err)
	}
	return audit{info.Size()}
}

// writes returns the writes since then to the objects of a namespace whose names have a prefix.
func (a audit) writes(t *testing.T, namespace, prefix string) (all []write) {
	t.Helper()
	f, err := os.Open(auditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var w write
		if err := json.Unmarshal(lines.Bytes(), &w); err != nil {
			break // the last line is being written
		}
		if w.ObjectRef.Namespace == namespace && strings.HasPrefix(w.ObjectRef.Name, prefix) {
			all = append(all, w)
		}
	}
	return all
}

// tally returns a table of writes: how many of each kind, the most frequent first. Failed ones are told apart.
func tally(all []write) string {
	n := map[string]int{}
	for _, w := range all {
		what := w.String()
		if w.Status.Code >= 300 {
			what += fmt.Sprintf(" (%d)", w.Status.Code)
		}
		n[what]++
	}
	var kinds []string
	for what := range n {
		kinds = append(kinds, what)
	}
	slices.SortFunc(kinds, func(a, b string) int {
		if n[a] != n[b] {
			return n[b] - n[a]
		}
		return strings.Compare(a, b)
	})
	var out strings.Builder
	for _, what := range kinds {
		fmt.Fprintf(&out, "%6d %s\n", n[what], what)
	}
	return out.String()
}
