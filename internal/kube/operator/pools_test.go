// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

func TestParsePools(t *testing.T) {
	for text, want := range map[string]string{
		"10.46.100.0/24":                      "10.46.100.1-10.46.100.254",
		"10.46.100.7/29":                      "10.46.100.1-10.46.100.6",
		"10.46.100.4/31":                      "10.46.100.4-10.46.100.5",
		"10.46.100.4/32":                      "10.46.100.4-10.46.100.4",
		"10.0.0.5-10.0.0.9":                   "10.0.0.5-10.0.0.9",
		" 10.0.0.5 - 10.0.0.5 ,10.0.1.0/30":   "10.0.0.5-10.0.0.5, 10.0.1.1-10.0.1.2",
		"":                                    "!",
		"10.0.0.0":                            "!",
		"10.0.0.9-10.0.0.5":                   "!is before",
		"::/64":                               "!is not IPv4",
		"::1-::2":                             "!has no IPv4",
		"127.0.0.0/8":                         "!that clients can use",
		"224.0.0.1-224.0.0.2":                 "!that clients can use",
		"10.0.0.0/4":                          "!too many",
		"1.0.0.0-100.0.0.0":                   "!too many",
		"10.0.0.0/24,10.0.0.128-10.0.0.130":   "!overlaps",
		"10.0.0.128-10.0.0.130,10.0.0.0/24":   "!overlaps",
		"10.0.0.1-10.0.0.20,10.0.0.20-10.0.1": "!",
	} {
		got, err := ParsePools(strings.Split(text, ","))
		if part, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "write 10.46.100.0/24") &&
				!strings.Contains(err.Error(), "leave one") {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"- 10.0.0.0/30\n- 10.0.1.0/30\n", "[10.0.0.0/30, 10.0.1.0/30]",
		"10.0.0.0/30, 10.0.1.0/30", "10.0.0.0/30\n10.0.1.0/30\n"} {
		if got, err := ParsePoolsYAML(text); err != nil || got.String() != "10.0.0.1-10.0.0.2, 10.0.1.1-10.0.1.2" {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := ParsePoolsYAML(""); err != nil || len(got) != 0 {
		t.Errorf("nothing: %v, %v", got, err)
	}
}

func testBook(t *testing.T, pools ...string) *book {
	t.Helper()
	p, err := ParsePools(pools)
	if err != nil {
		t.Fatal(err)
	}
	return newBook(p)
}

func claim(t *testing.T, b *book, k v1alpha1.Key, asked, had string) netip.Addr {
	t.Helper()
	a, _ := netip.ParseAddr(had)
	got, err := b.claim(k, asked, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestClaimGivesTheSameAddressAgain(t *testing.T) {
	b := testBook(t, "10.0.0.0/29", "10.0.1.5-10.0.1.6")
	x := claim(t, b, "n/x", "", "")
	if claim(t, b, "n/x", "", "") != x {
		t.Error("asked again it gets another one")
	}
	// The same name finds the same address, also in another life of the controller and after it was away.
	if got := claim(t, testBook(t, "10.0.0.0/29", "10.0.1.5-10.0.1.6"), "n/x", "", ""); got != x {
		t.Errorf("%v and %v", got, x)
	}
	b.release("n/x")
	for i := range 7 {
		if got := claim(t, b, v1alpha1.Key(fmt.Sprint("n/", i)), "", ""); got == x {
			t.Errorf("the address of a service that is gone went to the %d. of 7 others that had 8 to choose from", i)
		}
	}
	if got := claim(t, b, "n/x", "", ""); got != x {
		t.Errorf("it came back and got %v instead of %v", got, x)
	}
	_, err := b.claim("n/more", "", netip.Addr{}, nil)
	if want := "all 8 addresses of the pools (10.0.0.1-10.0.0.6, 10.0.1.5-10.0.1.6) are in use"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("from full pools: %v", err)
	}
	b.release("n/x")
	if got := claim(t, b, "n/more", "", ""); got != x {
		t.Errorf("the last free one is %v, and it got %v", x, got)
	}
}

func TestClaimOfAChosenAddress(t *testing.T) {
	b := testBook(t, "10.0.0.0/29")
	if got := claim(t, b, "n/a", "10.0.0.3", "10.0.0.5"); got.String() != "10.0.0.3" {
		t.Errorf("got %v", got)
	}
	if got := claim(t, b, "n/b", "", "10.0.0.5"); got.String() != "10.0.0.5" {
		t.Errorf("what it had is free, and it got %v", got)
	}
	if got := claim(t, b, "n/c", "", "10.0.0.3"); got.String() == "10.0.0.3" {
		t.Error("two have one address")
	}
	for asked, reason := range map[string]string{"10.0.0.3": "Conflict", "10.0.0.7": "OutOfRange", "x": "Invalid"} {
		_, err := b.claim("n/d", asked, netip.Addr{}, nil)
		var got addressError
		if !errors.As(err, &got) || got.reason != reason {
			t.Errorf("%s: %v", asked, err)
		}
	}
	if _, err := newBook(nil).claim("n/a", "", netip.Addr{}, nil); err == nil ||
		!strings.Contains(err.Error(), "--service-addresses") {
		t.Errorf("without pools: %v", err)
	}
	// Another one is asked for: the old one is free.
	b.release("n/c")
	claim(t, b, "n/a", "10.0.0.4", "")
	if got := claim(t, b, "n/d", "10.0.0.3", ""); got.String() != "10.0.0.3" {
		t.Errorf("got %v", got)
	}
	// The pools change: a service that has an address keeps it.
	b.pools = nil
	if got := claim(t, b, "n/d", "10.0.0.3", ""); got.String() != "10.0.0.3" {
		t.Errorf("got %v", got)
	}
	if got := claim(t, b, "n/b", "", ""); got.String() != "10.0.0.5" {
		t.Errorf("got %v", got)
	}
}
