// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"errors"
	"io"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
)

// podless is what the pods of these clusters do without.
type podless struct{}

var errNone = errors.New("this cluster does not do that")

// Prepare implements runtime.Runtime.
func (podless) Prepare(context.Context, *v1alpha1.WangellService, runtime.Progress) error { return nil }

// Forget implements runtime.Runtime.
func (podless) Forget(context.Context, v1alpha1.Key) error { return nil }

// Logs implements runtime.Runtime.
func (podless) Logs(context.Context, v1alpha1.Key, io.Writer, runtime.LogOptions) error {
	return errNone
}

// Versions implements runtime.Runtime.
func (podless) Versions(context.Context) map[string]string { return nil }

// Destroy implements runtime.Runtime.
func (podless) Destroy(context.Context) error { return nil }

// Appeared implements runtime.Cluster.
func (podless) Appeared() <-chan runtime.Pod { return nil }

// Leaving implements runtime.Cluster.
func (podless) Leaving() <-chan runtime.Leave { return nil }

// Ending implements runtime.Runtime.
func (podless) Ending() <-chan runtime.Ending { return nil }

// ReportPod implements runtime.Cluster.
func (podless) ReportPod(runtime.PodReport) {}

// ReportLog implements runtime.Cluster.
func (podless) ReportLog(runtime.PodLog) {}

// SetNodes implements runtime.Cluster.
func (podless) SetNodes([]string) {}

// DescribeNode implements runtime.Cluster: pods could run everywhere.
func (podless) DescribeNode(context.Context, string) (map[string]string, []corev1.Taint, error) {
	return nil, nil, nil
}

// NodeAddrs implements runtime.Cluster: it knows none.
func (podless) NodeAddrs(context.Context, string) ([]netip.Addr, error) { return nil, nil }

// PreferNodes implements runtime.Cluster.
func (podless) PreferNodes(v1alpha1.Key, []string) {}

// SetFrozen implements runtime.Cluster.
func (podless) SetFrozen(string, bool) {}

// Reservations implements runtime.Cluster.
func (podless) Reservations(v1alpha1.Key) reservation.Summary { return reservation.Summary{} }

// PullImage implements runtime.Cluster.
func (podless) PullImage(context.Context, runtime.ImagePull) error { return errNone }

// Rolling implements runtime.Cluster.
func (podless) Rolling(v1alpha1.Key) bool { return false }

// Inherited implements runtime.Cluster.
func (podless) Inherited(v1alpha1.Key) []string { return nil }
