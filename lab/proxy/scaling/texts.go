// SPDX-License-Identifier: Apache-2.0

package scaling

// The names of the reports.
const (
	reportName      = "scaling"
	ratesName       = "scaling-rates"
	replicasName    = "scaling-replicas"
	alternatingName = "scaling-alternating"
	flapName        = "scaling-flap"
)

const howAll = `A cluster of several nodes on one machine, each in namespaces of its own, with a real kubelet,
containerd and kube-proxy. The load server runs in pods of a Deployment behind a Service of type LoadBalancer
(kube-proxy) and in pods of a WangellService, with the same pod template. kube-proxy is restarted in the other mode
between measurements, and the old mode's rules are flushed. While Wangell is measured, kube-proxy runs in one of its
modes but is not in the path. Two modes are not measured: kube-proxy's userspace mode was removed in Kubernetes 1.26,
and its IPVS mode, deprecated since 1.35, needs kernel modules that this machine does not have. Clients are in the
network namespaces of pods of the first node. They use the ClusterIP of kube-proxy's Service, which leaves their
addresses unchanged, or the service address of Wangell's. Clients on the LAN are a host outside of the cluster: they
use a load balancer address that is routed to the first node, for which kube-proxy masquerades, or Wangell's service
address. Modes are measured in turn, forwards and backwards. Load generators, nodes and pods share the machine's
cores: the numbers compare modes, and do not show what a mode can do on a machine of its own. `
