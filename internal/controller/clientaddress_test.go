// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

func TestServicesWhosePodsCannotSeeClientsSayWhy(t *testing.T) {
	w := newWorld(t, nil)
	requests := func(how v1alpha1.ClientAddress) func(*v1alpha1.WangellServiceSpec) {
		return func(s *v1alpha1.WangellServiceSpec) {
			s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest, ClientAddress: how}
		}
	}
	w.apply(newService("a", requests(v1alpha1.ClientAddressTransparent)),
		newService("b", requests(v1alpha1.ClientAddressHeader)))
	events := w.c.Subscribe(t.Context())
	w.c.ReportHiddenClients("no such right")
	message := func(name string) string { return w.status(name).Service.Status.Message }
	w.until("the status tells", func() bool { return strings.Contains(message("a"), "not possible here: no such right") })
	for e := range events {
		if e.Kind == EventReport && strings.Contains(e.Text, "no such right") {
			if e.Service != "default/a" || e.Severity != SeverityWarning {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	if m := message("b"); m != "" {
		t.Errorf("another service says %q", m)
	}
	w.c.ReportHiddenClients("")
	w.until("it is possible", func() bool { return message("a") == "" })
}
