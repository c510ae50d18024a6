// SPDX-License-Identifier: Apache-2.0

package main

// Versions of the programs. checkVersions compares them with the go.mod files below modules.
const (
	kubernetesVersion = "v1.34.4"
	etcdVersion       = "v3.6.4"
	containerdVersion = "v2.4.2"
	corednsVersion    = "v1.14.6"
	cniVersion        = "v1.9.1"
	flannelVersion    = "v0.28.4"
	ciliumVersion     = "v1.20.2"
	metricsVersion    = "v0.9.0"
)
