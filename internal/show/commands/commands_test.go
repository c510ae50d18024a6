// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/status"
)

func servicesNamed(names ...string) (list []status.Status) {
	for _, n := range names {
		namespace, name, _ := strings.Cut(n, "/")
		var s status.Status
		s.Service.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name}
		list = append(list, s)
	}
	return list
}

func TestServicesAreCompletedAsTheyAreTyped(t *testing.T) {
	services := servicesNamed("default/web", "shop/web", "shop/db", "a/cache", "b/cache")
	for _, c := range []struct {
		given []string
		typed string
		want  string
	}{
		{nil, "", "web shop/web db a/cache b/cache"},
		{nil, "w", "web shop/web db a/cache b/cache"}, // the shell leaves out what does not begin so
		{nil, "shop/", "default/web shop/web shop/db a/cache b/cache"},
		{[]string{"web", "shop/db"}, "", "shop/web a/cache b/cache"},
		{[]string{"none", "cache"}, "", "web shop/web db a/cache b/cache"},
	} {
		if got := namesToType(services, c.given, c.typed); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%q after %q: %q, want %s", c.typed, c.given, got, c.want)
		}
	}
}
