// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
)

// One service that cannot be read must not keep a controller from reading the others.
func TestAListIsReadBesideAServiceThatCannotBe(t *testing.T) {
	const text = `{"apiVersion": "wangell.loutres.me/v1alpha1", "kind": "WangellServiceList",
		"metadata": {"resourceVersion": "7"}, "items": [
		{"metadata": {"name": "a", "uid": "1"}, "spec": {"image": "r/a:1", "port": 80, "sleep": {"freezeAfter": "soon"}},
			"status": {"loadBalancerIP": "10.46.100.5"}},
		{"metadata": {"name": "b"}, "spec": {"image": "r/b:1", "port": 80, "sleep": {"freezeAfter": "5s"}}}]}`
	var l WangellServiceList
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatal(err)
	}
	if l.ResourceVersion != "7" || len(l.Items) != 2 {
		t.Fatalf("%+v", l)
	}
	a, b := &l.Items[0], &l.Items[1]
	if a.Name != "a" || a.UID != "1" || a.Status.LoadBalancerIP != "10.46.100.5" {
		t.Errorf("%+v", a)
	}
	if errs := ValidateCluster(a); len(errs) != 1 || !strings.Contains(errs.Error(), `spec: cannot be read: `) ||
		!strings.Contains(errs.Error(), `invalid duration "soon"`) {
		t.Errorf("%v", errs)
	}
	if errs := ValidateCluster(b); len(errs) != 0 || b.Name != "b" {
		t.Errorf("%+v: %v", b, errs)
	}
}
