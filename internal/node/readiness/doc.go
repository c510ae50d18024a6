// SPDX-License-Identifier: Apache-2.0

// Package readiness runs the startupProbe and the readinessProbe of a pod and decides whether the pod is ready.
// Fields and thresholds mean the same as in Kubernetes (https://kubernetes.io/docs/concepts/workloads/pods/probes/);
// but a pod that was never ready is probed every few milliseconds, because clients wait for it. So a startupProbe has
// failed when failureThreshold periods have passed, however many probes ran in them.
package readiness
