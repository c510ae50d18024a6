// SPDX-License-Identifier: Apache-2.0

package cluster

import "errors"

// FlagUsage describes the flag --cluster.
const FlagUsage = "cluster.json of a cluster started by test/cluster (required)"

// CheckFlag returns an error if --cluster is missing.
func CheckFlag(file string) error {
	if file == "" {
		return errors.New("--cluster is missing: name the cluster.json of a cluster started by test/cluster")
	}
	return nil
}
