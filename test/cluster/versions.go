// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

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

// otherEtcds are the versions of Kubernetes that a cluster can have besides kubernetesVersion, with their etcd: the
// oldest that Wangell supports, and the newest that the module proxy serves. The module of each is
// modules/kubernetes-NUMBER.
var otherEtcds = map[string]string{"v1.30.14": "v3.5.21", "v1.37.2": "v3.7.0"}

// etcdOf returns the version of etcd that belongs to one of Kubernetes; empty if no cluster can have that version.
func etcdOf(kubernetes string) string {
	if kubernetes == kubernetesVersion {
		return etcdVersion
	}
	return otherEtcds[kubernetes]
}

// kubernetesModule returns the folder below modules with the go.mod of a version of Kubernetes.
func kubernetesModule(version string) string {
	if version == kubernetesVersion {
		return "kubernetes"
	}
	return "kubernetes-" + strings.TrimPrefix(version, "v")
}
