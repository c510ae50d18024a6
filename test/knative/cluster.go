// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"wangell.loutres.me/test/testutil/clusterfile"
)

// cluster is the cluster in which Knative is installed.
type cluster struct{ *clusterfile.Cluster }

func loadCluster(file string) (*cluster, error) {
	if file == "" {
		return nil, errors.New("--cluster is missing: name the cluster.json of a cluster started by test/cluster")
	}
	c, err := clusterfile.Load(file)
	if err != nil {
		return nil, fmt.Errorf("--cluster: %w", err)
	}
	return &cluster{c}, nil
}

// kubectl runs the cluster's kubectl with a manifest as its input.
func (c *cluster) kubectl(ctx context.Context, input []byte, args ...string) error {
	args = append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"), args...)
	cmd.Stdin = bytes.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", args[1], err, tail(out))
	}
	return nil
}
