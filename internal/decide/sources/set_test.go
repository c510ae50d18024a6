// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func prefixes(t testing.TB, text string) (out []netip.Prefix) {
	t.Helper()
	for _, f := range strings.Fields(text) {
		p, err := netip.ParsePrefix(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestRulesAreTheFewestThatSayTheSame(t *testing.T) {
	for _, c := range []struct{ name, in, except, want string }{
		{"nothing", "", "", ""},
		{"everything", "0.0.0.0/0", "", "+0.0.0.0/0"},
		{"one prefix", "10.0.0.0/8", "", "+10.0.0.0/8"},
		{"bits beyond the prefix", "10.1.2.3/8", "", "+10.0.0.0/8"},
		{"an exception", "10.0.0.0/8", "10.1.0.0/16", "+10.0.0.0/8 -10.1.0.0/16"},
		{"all but one address", "0.0.0.0/0", "192.0.2.1/32", "+0.0.0.0/0 -192.0.2.1/32"},
		{"halves that join", "10.0.0.0/9 10.128.0.0/9", "", "+10.0.0.0/8"},
		{"one within another", "10.0.0.0/8 10.1.0.0/16", "", "+10.0.0.0/8"},
		{"three quarters", "10.0.0.0/10 10.64.0.0/10 10.128.0.0/10", "", "+10.0.0.0/8 -10.192.0.0/10"},
		{"two addresses", "10.0.0.1/32 10.0.0.4/32", "", "+10.0.0.1/32 +10.0.0.4/32"},
		{"all of a prefix is excepted", "10.0.0.0/8", "10.0.0.0/7", ""},
		{"the last address", "255.255.255.255/32", "", "+255.255.255.255/32"},
		{"all but the ends", "0.0.0.0/0", "0.0.0.0/32 255.255.255.255/32",
			"+0.0.0.0/0 -0.0.0.0/32 -255.255.255.255/32"},
		{"IPv6 is left out", "2001:db8::/32 10.0.0.0/8", "", "+10.0.0.0/8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Of(prefixes(t, c.in)...).Minus(Of(prefixes(t, c.except)...))
			var got []string
			for _, r := range s.Rules() {
				got = append(got, map[bool]string{true: "+", false: "-"}[r.Allow]+r.Prefix.String())
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("rules %q, want %q", text, c.want)
			}
		})
	}
}

// An exception holds for its own block only: what another block allows stays allowed.
func TestUnionOfPoliciesBeatsTheExceptionOfOne(t *testing.T) {
	one := Of(prefixes(t, "10.0.0.0/8")...).Minus(Of(prefixes(t, "10.1.0.0/16")...))
	both := one.Union(Of(prefixes(t, "10.1.2.0/24")...))
	for a, want := range map[string]bool{"10.0.0.1": true, "10.1.0.1": false, "10.1.2.1": true, "11.0.0.0": false} {
		if got := both.Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s is allowed: %v, want %v", a, got, want)
		}
	}
}

func TestASetThatIsTooLargeLosesItsSmallestRanges(t *testing.T) {
	s := Of(prefixes(t, "10.0.0.1/32 10.0.0.5/32 10.0.0.9/32 192.0.2.0/24 198.51.100.0/30")...)
	got, left := s.Within(2)
	if want := Of(prefixes(t, "192.0.2.0/24 198.51.100.0/30")...); !got.Equal(want) || left != 3 {
		t.Errorf("%v, %d ranges left out, want %v and 3", got.Rules(), left, want.Rules())
	}
	if got, left := s.Within(5); !got.Equal(s) || left != 0 {
		t.Errorf("%v, %d ranges left out of a set that fits", got.Rules(), left)
	}
}

// verdict applies rules as the kernel does: the longest prefix counts.
func verdict(rules []Rule, a netip.Addr) bool {
	bits, allowed := -1, false
	for _, r := range rules {
		if r.Prefix.Contains(a) && r.Prefix.Bits() > bits {
			bits, allowed = r.Prefix.Bits(), r.Allow
		}
	}
	return allowed
}

// FuzzRules builds a set by operations, and compares it and its rules with an evaluator that does not know of ranges.
func FuzzRules(f *testing.F) {
	f.Add([]byte{0, 10, 0, 0, 0, 8, 1, 10, 1, 0, 0, 16, 0, 10, 1, 2, 0, 24})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 1, 255, 255, 255, 255, 32, 2, 128, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		type op struct {
			kind   byte
			prefix netip.Prefix
		}
		var all []op
		var s Set
		probes := []netip.Addr{netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255")}
		for ; len(ops) >= 6 && len(all) < 64; ops = ops[6:] {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte(ops[1:5])), int(ops[5]%33)).Masked()
			o := op{ops[0] % 3, p}
			all = append(all, o)
			switch o.kind {
			case 0:
				s = s.Union(Of(p))
			case 1:
				s = s.Minus(Of(p))
			case 2:
				s = s.Intersect(Of(p))
			}
			x := spanOf(p)
			for _, n := range []uint32{x.first - 1, x.first, x.last, x.last + 1} {
				var b [4]byte
				binary.BigEndian.PutUint32(b[:], n)
				probes = append(probes, netip.AddrFrom4(b))
			}
		}
		rules := s.Rules()
		for _, a := range probes {
			want := false
			for _, o := range all {
				in := o.prefix.Contains(a)
				want = o.kind == 0 && (want || in) || o.kind == 1 && want && !in || o.kind == 2 && want && in
			}
			if got := s.Contains(a); got != want {
				t.Fatalf("%v in the set: %v, want %v after %v", a, got, want, all)
			}
			if got := verdict(rules, a); got != want {
				t.Fatalf("%v by rules %v: %v, want %v after %v", a, rules, got, want, all)
			}
		}
		var back Set
		for _, r := range slices.SortedFunc(slices.Values(rules), func(a, b Rule) int {
			return a.Prefix.Bits() - b.Prefix.Bits()
		}) {
			if back = back.Minus(Of(r.Prefix)); r.Allow {
				back = back.Union(Of(r.Prefix))
			}
		}
		if !back.Equal(s) {
			t.Fatalf("the rules %v say %v, want %v", rules, back, s)
		}
	})
}
