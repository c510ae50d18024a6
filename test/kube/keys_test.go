// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/e2e"
)

// testNodeKeys shows that daemons have no key but that of their own node: they run without the Secret, may not read it,
// and a stolen key of a node speaks for that node only.
func testNodeKeys(t *testing.T) {
	const account = "system:serviceaccount:" + productNamespace + ":wangell-daemon"
	const secret = "wangell-wire"
	for _, verb := range []string{"get", "list", "watch"} {
		out, _ := lab.kubectlOnce("", "auth", "can-i", verb, "secrets/"+secret, "-n", productNamespace, "--as", account)
		if !strings.Contains(out, "no") || strings.Contains(out, "yes") {
			t.Errorf("may the daemons' account %s the Secret with the master key? %q", verb, out)
		}
	}
	var set appsv1.DaemonSet
	text := e2e.Must(lab.kubectl("", "get", "daemonset", "wangell-daemon", "-n", productNamespace, "-o", "json"))(t)
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			t.Errorf("the daemons mount the Secret %s", v.Secret.SecretName)
		}
	}
	data := e2e.Must(lab.kubectl("", "get", "secret", secret, "-n", productNamespace, "-o",
		`jsonpath={.data.wire\.key}`))(t)
	b, err := base64.StdEncoding.DecodeString(data)
	if err != nil || len(b) != wire.KeySize {
		t.Fatalf("the master key: %d bytes, %v", len(b), err)
	}
	// Each daemon has its own key, and no other. It is Ready only once it has used that.
	for _, n := range lab.Nodes {
		file := fmt.Sprintf("/proc/%d/root/run/wangell/node.keys", n.HolderPid)
		var kept struct {
			Name string
			Keys enrolment.Keys
		}
		if err := json.Unmarshal(e2e.Must(os.ReadFile(file))(t), &kept); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if kept.Name != n.Name || kept.Keys != enrolment.KeysOf(wire.Key(b), n.Name) {
			t.Errorf("the keys of %s are kept for %q, and are not those of this node", n.Name, kept.Name)
		}
		if mode := e2e.Must(os.Stat(file))(t).Mode(); mode != 0o600 {
			t.Errorf("%s: mode %v", file, mode)
		}
	}
	const own = "stolen-node"
	stolen := wire.Key(b).ForNode(own)
	to := relay(t, lab.nodes[0], lab.wireAddress(t))
	connected, unanswered := make(chan string, 10), make(chan string, 10)
	as := func(node string) {
		c, err := wire.NewClient(wire.ClientConfig{
			Server: to, Key: stolen, Node: node, Connected: func() { connected <- node },
			Unanswered: func() { unanswered <- node },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	as(own)
	select {
	case <-connected:
	case <-time.After(e2e.Patience):
		t.Fatal("the key of a node does not open a session of that node")
	}
	for _, n := range lab.nodes {
		as(n.name)
		select {
		case node := <-connected:
			t.Errorf("the key of %s opened a session of %s", own, node)
		case <-unanswered:
		case <-time.After(e2e.Patience):
			t.Errorf("%s: neither answered nor refused", n.name)
		}
	}
}

// wireAddress returns the address of the leader's wire.
func (c *cluster) wireAddress(t *testing.T) (addr string) {
	t.Helper()
	e2e.Eventually(t, "a leader", func() (bool, string) {
		holder := e2e.Must(c.kubectl("", "get", "lease", "-n", productNamespace, leaseName, "-o",
			"jsonpath={.spec.holderIdentity}"))(t)
		_, addr, _ = strings.Cut(holder, "/")
		return addr != "", fmt.Sprintf("holder %q", holder)
	})
	return addr
}

// relay returns an address of this process whose datagrams go to another address as from a process on a node, and back.
func relay(t *testing.T, from *node, to string) string {
	t.Helper()
	here, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	go func() {
		there := map[string]net.Conn{}
		buf := make([]byte, 2048)
		for {
			n, client, err := here.ReadFrom(buf)
			if err != nil {
				for _, c := range there {
					c.Close()
				}
				return
			}
			c := there[client.String()]
			if c == nil {
				if c, err = from.ns.Dialer().DialContext(t.Context(), "udp4", to); err != nil {
					continue // the client sends again
				}
				there[client.String()] = c
				go func() {
					answer := make([]byte, 2048)
					for {
						n, err := c.Read(answer)
						if err != nil {
							return
						}
						_, _ = here.WriteTo(answer[:n], client)
					}
				}()
			}
			_, _ = c.Write(buf[:n])
		}
	}()
	return here.LocalAddr().String()
}
