// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"net/http"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/pullstat"
	"wangell.loutres.me/internal/testutil/ownns"
)

const goarch = runtime.GOARCH

// The tests run in their own network and mount namespaces, with a real containerd.
func TestMain(m *testing.M) {
	ownns.Main(func() int {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			println(err.Error())
			return 1
		}
		return m.Run()
	})
}

func TestDump(t *testing.T) {
	ref := push(t, serveRegistry(t, func(*http.Request) {}), testImage(t))
	program := os.Getenv("PROG")
	if program == "" {
		program = "containerd"
	}
	rec, err := Run(t.Context(), Options{Image: ref, Via: os.Getenv("VIA"), Program: program, Dir: t.TempDir(), Progress: func(s string, d, n int64) { t.Log(s, d, n) }})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.MarshalIndent(rec, "", " ")
	os.WriteFile("/tmp/analyse-rec-"+os.Getenv("VIA")+".json", b, 0o644)
	rep, err := pullstat.Analyse(rec)
	if err != nil {
		t.Fatal(err)
	}
	b, _ = json.MarshalIndent(rep, "", " ")
	os.WriteFile("/tmp/analyse-rep-"+os.Getenv("VIA")+".json", b, 0o644)
	t.Log(rep.Pull, rep.Phases, rep.Model)
	for _, a := range rep.Advice {
		t.Log(a)
	}
}
