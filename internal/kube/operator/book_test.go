// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wangell.loutres.me/api/v1alpha1"
)

// refused fails the test unless a claim is refused for a reason.
func refused(t *testing.T, b *book, k v1alpha1.Key, asked string, of labels.Set, reason string) {
	t.Helper()
	got, err := b.claim(k, asked, netip.Addr{}, of)
	var why addressError
	if !errors.As(err, &why) || why.reason != reason {
		t.Errorf("%s claims %q: %v, %v, want a refusal for %s", k, asked, got, err, reason)
	}
}

// A tenant does not get the clients of another one: by no way does an address that a service leaves go to another
// namespace before its quarantine is over. The namespace itself may use it.
func TestAddressesOfOthersAreInQuarantine(t *testing.T) {
	const address = "10.0.0.3"
	for how, leave := range map[string]func(b *book){
		"deleted": func(b *book) { b.release("a/x") },
		"moved":   func(b *book) { claim(t, b, "a/x", "10.0.0.5", "") },
	} {
		t.Run(how, func(t *testing.T) {
			b := testBook(t, "10.0.0.2-10.0.0.5")
			now := time.Unix(1_000_000, 0)
			b.now = func() time.Time { return now }
			claim(t, b, "a/x", address, "")
			leave(b)
			now = now.Add(time.Hour - time.Second)
			refused(t, b, "b/asks", address, nil, "Quarantined")
			if got := claim(t, b, "b/had", "", address); got.String() == address {
				t.Error("a former address of a service is given back although it was that of another namespace meanwhile")
			}
			b.release("b/had")
			for i := range 3 {
				k := v1alpha1.Key(fmt.Sprint("b/", i))
				if got, err := b.claim(k, "", netip.Addr{}, nil); err == nil && got.String() == address {
					t.Errorf("%s got the address", k)
				}
			}
			if got := claim(t, b, "a/y", address, ""); got.String() != address {
				t.Errorf("the namespace itself got %v", got)
			}
			b.release("a/y")
			now = now.Add(time.Hour)
			if got := claim(t, b, "b/asks", address, ""); got.String() != address {
				t.Errorf("after the quarantine: %v", got)
			}
		})
	}
	b := testBook(t, "10.0.0.2-10.0.0.3")
	claim(t, b, "a/x", "", "")
	claim(t, b, "a/y", "", "")
	b.release("a/x")
	_, err := b.claim("b/z", "", netip.Addr{}, nil)
	if err == nil || !strings.Contains(err.Error(), "1 were those of other namespaces' services until lately") {
		t.Errorf("without another address: %v", err)
	}
	b.rules.Quarantine = 0
	claim(t, b, "b/z", "", "")
}

// Reserved addresses go to the namespaces with these labels alone, and first.
func TestReservedAddressesGoToTheirNamespaces(t *testing.T) {
	b := testBook(t, "10.0.0.2-10.0.0.5")
	var err error
	if b.rules, err = ParseAddressRules(`reserved:
- {addresses: [10.0.0.4-10.0.0.5], namespaceSelector: {matchLabels: {team: a}}}
- {addresses: [10.0.0.5/32], namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [c]}]}}
`); err != nil {
		t.Fatal(err)
	}
	ofA, ofC := labels.Set{"team": "a"}, labels.Set{"team": "c"}
	refused(t, b, "b/x", "10.0.0.4", nil, "Reserved")
	refused(t, b, "b/x", "10.0.0.5", labels.Set{"team": "b"}, "Reserved")
	refused(t, b, "c/x", "10.0.0.4", ofC, "Reserved")
	for i, want := range []string{"10.0.0.5", "10.0.0.2 10.0.0.3", "10.0.0.2 10.0.0.3"} {
		got, err := b.claim(v1alpha1.Key(fmt.Sprint("c/", i)), "", netip.Addr{}, ofC)
		if err != nil || !strings.Contains(want, got.String()) {
			t.Errorf("the %d. of namespace c got %v, %v, want one of %s", i, got, err, want)
		}
	}
	refused(t, b, "b/x", "", nil, "Exhausted")
	if got, err := b.claim("a/x", "", netip.Addr{}, ofA); err != nil || got.String() != "10.0.0.4" {
		t.Errorf("a: %v, %v", got, err)
	}
	// A service keeps what it has.
	if got, err := b.claim("a/x", "", netip.Addr{}, nil); err != nil || got.String() != "10.0.0.4" {
		t.Errorf("without the label: %v, %v", got, err)
	}
}

// A namespace cannot take all addresses, whether it asks for them or not.
func TestNamespacesHaveAQuota(t *testing.T) {
	b := testBook(t, "10.0.0.2-10.0.0.9")
	b.rules.PerNamespace = 2
	x := claim(t, b, "a/x", "10.0.0.2", "")
	claim(t, b, "a/y", "10.0.0.3", "")
	refused(t, b, "a/z", "", nil, "QuotaExceeded")
	refused(t, b, "a/z", "10.0.0.4", nil, "QuotaExceeded")
	if got := claim(t, b, "a/x", "", ""); got != x {
		t.Errorf("it had %v, and has %v", x, got)
	}
	claim(t, b, "a/y", "10.0.0.4", "") // instead of its own
	claim(t, b, "b/x", "", "")
	b.release("a/x")
	claim(t, b, "a/z", "", "")
}

func TestRulesOfAddressesAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"quarantine: 1":    "quarantine: 1h",
		"quarantine: -1s":  "want 0 or more",
		"perNamespace: -1": "want 0 or more",
		"quarantines: 1h":  "unknown field",
		"reserved: [{addresses: [10.0.0.0/33], namespaceSelector: {matchLabels: {a: b}}}]":     "reserved[0]",
		"reserved: [{addresses: [10.0.0.0/24]}]":                                               "no namespaceSelector",
		"reserved: [{addresses: [10.0.0.0/24], namespaceSelector: {matchLabels: {'a b': c}}}]": "namespaceSelector",
	} {
		if _, err := ParseAddressRules(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
	if rules, err := ParseAddressRules(""); err != nil || rules.Quarantine != time.Hour || rules.PerNamespace != 0 {
		t.Errorf("none: %+v, %v", rules, err)
	}
}

// The next leader knows which addresses are in quarantine, and rules apply as soon as they are in the ConfigMap.
func TestQuarantineOutlastsLeaders(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Namespace = ""
		c.ReleasedIn = Name{c.Lease.Namespace, "released"}
		c.PoolsFrom = Name{c.Lease.Namespace, "pools"}
	})
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "released"}})
	others := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "others-"}}
	w.create(others)
	// Services that other tests have left are managed as well, and must not get these addresses.
	reserved := func(namespaces ...string) string {
		return "reserved: [{addresses: [10.46.101.3-10.46.101.6], namespaceSelector: {matchExpressions: [{key: " +
			corev1.LabelMetadataName + ", operator: In, values: [" + strings.Join(namespaces, ", ") + "]}]}}]"
	}
	both := reserved(w.namespace, others.Name)
	rules := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pools"},
		Data: map[string]string{"addresses": "10.46.101.0/24", "addressRules": "{perNamespace: 2, " + both + "}"}}
	w.create(rules)
	stop := w.run()
	w.until("the pools are known", func() bool {
		s := w.service("probe")
		if s.Name == "" {
			w.apply("probe", func(s *v1alpha1.WangellServiceSpec) { s.Address = "10.46.101.6" })
		}
		return s.Status.LoadBalancerIP != ""
	})
	w.apply("shop", func(s *v1alpha1.WangellServiceSpec) { s.Address = "10.46.101.3" })
	w.condition("shop", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
	w.apply("third")
	w.condition("third", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "QuotaExceeded")
	if err := w.client.Delete(t.Context(), w.service("shop")); err != nil {
		t.Fatal(err)
	}
	kept := func() string {
		var m corev1.ConfigMap
		w.get("released", &m)
		return m.Data["10.46.101.3"]
	}
	w.until("it is kept", func() bool { return strings.HasPrefix(kept(), w.namespace+"/shop ") })
	stop()
	w.run()

	home := w.namespace
	w.namespace = others.Name
	w.apply("thief", func(s *v1alpha1.WangellServiceSpec) { s.Address = "10.46.101.3" })
	w.condition("thief", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Quarantined")
	w.namespace = home
	rules.Data["addressRules"] = "{quarantine: 0s, " + reserved(home) + "}"
	if err := w.client.Update(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	w.namespace = others.Name
	w.condition("thief", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Reserved")
	w.namespace = home
	rules.Data["addressRules"] = "{quarantine: 0s, " + both + "}"
	if err := w.client.Update(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	w.namespace = others.Name
	w.condition("thief", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
	w.namespace = home
	w.until("it is not kept any longer", func() bool { return kept() == "" })
}
