// SPDX-License-Identifier: Apache-2.0

// Package kube tests the product on a real Kubernetes of several nodes (test/cluster): installed by its chart, used by
// all kinds of clients, and with faults.
package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/need"
)

// Shared by all tests.
var (
	lab    *cluster
	folder string // for the files of this run
	root   string // folder of the repository
)

// init keeps the first thread for TestMain. If a goroutine moved it into a network namespace of the cluster, this
// process would count as one of that namespace (/proc/PID/ns/net), and be killed with it at the end.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	need.RootMain("tests on a cluster")
	os.Exit(run(m))
}

// run starts a cluster, unless WANGELL_CLUSTER names the cluster.json of one, and pushes the images. Its version of
// Kubernetes is WANGELL_TEST_KUBERNETES, its pod network WANGELL_TEST_CNI, and the snapshotter of its nodes
// WANGELL_TEST_SNAPSHOTTER, or else the defaults of test/cluster.
func run(m *testing.M) (code int) {
	err := func() (err error) {
		if root, err = filepath.Abs("../.."); err != nil {
			return err
		}
		if folder, err = os.MkdirTemp("", "wgkube-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
		file := os.Getenv("WANGELL_CLUSTER")
		if file == "" {
			dir, name := filepath.Join(folder, "cluster"), fmt.Sprintf("t%d", os.Getpid()%100000)
			file = filepath.Join(dir, "cluster.json")
			defer func() { err = errors.Join(err, clusterCommand("down", "--name", name, "--dir", dir)) }()
			up := []string{"up", "--nodes", "3", "--name", name, "--dir", dir}
			if version := os.Getenv("WANGELL_TEST_KUBERNETES"); version != "" {
				up = append(up, "--kubernetes", version)
			}
			if cni := os.Getenv("WANGELL_TEST_CNI"); cni != "" {
				up = append(up, "--cni", cni)
			}
			if snapshotter := os.Getenv("WANGELL_TEST_SNAPSHOTTER"); snapshotter != "" {
				maker, _, err := debimage.MkfsErofs(context.Background(), folder)
				if err == nil {
					err = os.Setenv("PATH", maker+":"+os.Getenv("PATH"))
				}
				if err != nil {
					return err
				}
				up = append(up, "--snapshotter", snapshotter)
			}
			if err := clusterCommand(up...); err != nil {
				return err
			}
		}
		if lab, err = openCluster(file); err != nil {
			return err
		}
		if err := pushImages(); err != nil {
			return err
		}
		code = m.Run()
		return errors.Join(removeKnative(), uninstall())
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests on a cluster:", err)
		return 1
	}
	return code
}

// clusterCommand runs test/cluster's program.
func clusterCommand(args ...string) error {
	c := exec.Command("go", append([]string{"run", "-C", filepath.Join(root, "test/cluster"), "."}, args...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("cluster %s: %w", args[0], err)
	}
	return nil
}

// trials repeats a measurement until it is correct, at most three times, and fails the test with all wrong results
// otherwise. It is for results that are exact only on a machine that never stalls: during a stall, a SYN-ACK may take
// longer than the 200 ms after which a gate correctly gives the connection to another pod.
func trials(t *testing.T, what string, f func() (wrong string)) {
	t.Helper()
	var all []string
	for range 3 {
		wrong := f()
		if wrong == "" {
			return
		}
		t.Logf("%s: %s", what, wrong)
		all = append(all, wrong)
	}
	t.Errorf("%s: wrong each time: %s", what, strings.Join(all, "; "))
}
