// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

func book(prefix string, given ...string) addressBook {
	b := addressBook{prefix: netip.MustParsePrefix(prefix), given: map[v1alpha1.Key]netip.Addr{}}
	for i := 0; i < len(given); i += 2 {
		b.given[v1alpha1.Key("default/"+given[i])] = netip.MustParseAddr(given[i+1])
	}
	return b
}

// wants makes services from "name" and "name=address".
func wants(names ...string) (out []*v1alpha1.WangellService) {
	for _, n := range names {
		name, addr, _ := strings.Cut(n, "=")
		s := &v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1alpha1.WangellServiceSpec{Image: "registry.example/" + name + ":1", Port: 80, TargetPort: 8080,
				Address: addr},
		}
		v1alpha1.Default(s)
		out = append(out, s)
	}
	return out
}

func TestAddressesAreAssignedByPreference(t *testing.T) {
	cases := map[string]struct {
		book  addressBook
		wants []string
		want  string // or the error
	}{
		"the first addresses are not assigned": {book("10.0.0.0/29"), []string{"a", "b"}, "a=10.0.0.2 b=10.0.0.3"},
		"an address is kept": {book("10.0.0.0/29", "b", "10.0.0.5"), []string{"a", "b"},
			"a=10.0.0.2 b=10.0.0.5"},
		"the manifest asks for one": {book("10.0.0.0/29"), []string{"a", "b=10.0.0.2"}, "a=10.0.0.3 " +
			"b=10.0.0.2"},
		"the manifest asks for another one than before": {book("10.0.0.0/29", "a", "10.0.0.4"), []string{"a=10.0.0.5"},
			"a=10.0.0.5"},
		"addresses of others are reserved": {book("10.0.0.0/29", "x", "10.0.0.2"), []string{"a"}, "a=10.0.0.3 " +
			"x=10.0.0.2"},
		"a reserved address can be asked for": {book("10.0.0.0/29", "x", "10.0.0.2"), []string{"a=10.0.0.2"}, "a=10.0.0.2"},
		"reserved addresses are used when the range is full": {book("10.0.0.0/29", "x", "10.0.0.2", "y", "10.0.0.4"),
			[]string{"a", "b", "c", "d"},
			"a=10.0.0.3 b=10.0.0.5 c=10.0.0.6 d=10.0.0.2 y=10.0.0.4"},
		"the smallest range": {book("10.0.0.0/30"), []string{"a"}, "a=10.0.0.2"},
		"the range is full": {book("10.0.0.0/30"), []string{"a", "b"},
			"service default/b: no address is left: all 1 addresses of the range 10.0.0.0/30 are in use: " +
				"start with larger --addresses"},
		"two manifests ask for the same": {book("10.0.0.0/29"), []string{"a=10.0.0.2", "b=10.0.0.2"},
			"service default/b: spec.address 10.0.0.2 is already that of service default/a: choose another, or leave it out"},
		"the manifest asks for that of another service": {book("10.0.0.0/29", "a", "10.0.0.4"), []string{"a", "b=10.0.0.4"},
			"service default/b: spec.address 10.0.0.4 was already given to service default/a, which may be in use: choose " +
				"another, or leave it out"},
		"the manifest asks for that of the machine": {book("10.0.0.0/29"), []string{"a=10.0.0.1"},
			"service default/a: spec.address 10.0.0.1 cannot be used: the range 10.0.0.0/29 has 10.0.0.2 to 10.0.0.6 for " +
				"services: choose one of these, or start with another --addresses"},
		"the manifest asks for the broadcast address": {book("10.0.0.0/29"), []string{"a=10.0.0.7"},
			"service default/a: spec.address 10.0.0.7 cannot be used: the range 10.0.0.0/29 has 10.0.0.2 to 10.0.0.6 for " +
				"services: choose one of these, or start with another --addresses"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprint(c.book.given)
			next, err := c.book.assign(wants(c.wants...))
			var got []string
			for _, n := range []string{"a", "b", "c", "d", "x", "y"} {
				if a, ok := next.given[v1alpha1.Key("default/"+n)]; ok {
					got = append(got, n+"="+a.String())
				}
			}
			text := strings.Join(got, " ")
			if err != nil {
				text = err.Error()
			}
			if text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
			if fmt.Sprint(c.book.given) != before {
				t.Error("assign changed the book that it was called on")
			}
		})
	}
}

func TestAddressBookSurvivesInItsFile(t *testing.T) {
	dir := t.TempDir()
	b := book("10.0.0.0/24", "a", "10.0.0.9", "b", "10.0.0.200")
	if err := b.save(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := loadAddresses(dir, b.prefix); err != nil || !got.equal(b) {
		t.Errorf("%v, %v", got, err)
	}
	// A smaller range forgets what is outside.
	small := netip.MustParsePrefix("10.0.0.0/28")
	if got, err := loadAddresses(dir, small); err != nil || len(got.given) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files left: %v", files)
	}
	if err := os.WriteFile(filepath.Join(dir, addressFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadAddresses(dir, b.prefix); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a broken file: %v", err)
	}
}
