// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"wangell.loutres.me/internal/clusterapi"
)

// The snapshotters of lazy pulls are checked if the chart has them: they need nodes with the label, and run there.
func TestSnapshottersAreCheckedWhereThereAreSome(t *testing.T) {
	of := clusterapi.Controller{Namespace: "wangell-system", Name: "wangell"}
	without := doctor{api: fake.NewClientset(), of: of}
	if got := without.lazy(t.Context()); got != nil {
		t.Errorf("without snapshotters: %+v", got)
	}
	for _, c := range []struct {
		ready, wanted int32
		state         State
		do            string
	}{
		{0, 0, Warn, "label them"}, {1, 2, Failed, "wangell doctor"}, {2, 2, OK, ""},
	} {
		d := doctor{of: of, api: fake.NewClientset(&appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "wangell-lazy"},
			Status:     appsv1.DaemonSetStatus{NumberReady: c.ready, DesiredNumberScheduled: c.wanted},
		})}
		got := d.lazy(t.Context())
		if len(got) != 1 || got[0].State != c.state || !strings.Contains(got[0].Do, c.do) {
			t.Errorf("%d of %d: %+v", c.ready, c.wanted, got)
		}
	}
}
