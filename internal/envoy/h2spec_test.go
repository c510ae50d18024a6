// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"wangell.loutres.me/internal/testutil/envoytest"
	"wangell.loutres.me/internal/testutil/need"
)

// h2spec runs the HTTP/2 conformance tests of that name against a server, and returns those that fail.
func h2spec(t *testing.T, at netip.AddrPort) map[string]bool {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.xml")
	// It exits with 1 if a test has failed.
	out, err := exec.CommandContext(t.Context(), "../../hack/tool.sh", "h2spec", "-h", at.Addr().String(),
		"-p", fmt.Sprint(at.Port()), "-j", report).CombinedOutput()
	data, readErr := os.ReadFile(report)
	if readErr != nil {
		t.Fatalf("h2spec: %v, %v\n%s", err, readErr, out)
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Package string  `xml:"package,attr"`
				Name    string  `xml:"classname,attr"`
				Failure *string `xml:"failure"`
				Error   *string `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	printable := bytes.Map(func(r rune) rune { // it quotes what the server has sent
		if r < ' ' && r != '\n' || r == utf8.RuneError {
			return -1
		}
		return r
	}, data)
	if err := xml.Unmarshal(printable, &suites); err != nil {
		t.Fatalf("h2spec: %v", err)
	}
	failed, all := map[string]bool{}, 0
	for _, s := range suites.Suites {
		for _, c := range s.Cases {
			if all++; c.Failure != nil || c.Error != nil {
				failed[c.Package+": "+c.Name] = true
			}
		}
	}
	t.Logf("%v: %d of %d fail:", at, len(failed), all)
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		t.Log(name)
	}
	if all < 100 {
		t.Fatalf("h2spec: only %d tests:\n%s", all, out)
	}
	return failed
}

// knownFailures are the tests of h2spec that Envoy fails, whatever its configuration, by what it does instead of what
// is expected. None has a client lose or mix up an answer. Sections are those of RFC 7540, whose priorities RFC 9113
// has dropped.
var knownFailures = map[string][]string{
	"answers further requests until the client closes the connection": {
		"generic/3.8: Sends a GOAWAY frame",
		"http2/7: Sends a GOAWAY frame with unknown error code",
	},
	"takes what does not begin like HTTP/2 for something else, where it has to find out": {
		"http2/3.5: Sends invalid connection preface",
	},
	"ignores the frame; half closed: if the answer is complete before it comes": {
		"http2/5.1.1: Sends stream identifier that is numerically smaller than previous",
		"http2/5.1: closed: Sends a DATA frame",
		"http2/5.1: closed: Sends a HEADERS frame",
		"http2/5.1: closed: Sends a DATA frame after sending RST_STREAM frame",
		"http2/5.1: closed: Sends a HEADERS frame after sending RST_STREAM frame",
		"http2/5.1: half closed (remote): Sends a DATA frame",
	},
	"ignores priorities": {
		"http2/5.3.1: Sends PRIORITY frame that depend on itself",
		"http2/6.3: Sends a PRIORITY frame with 0x0 stream identifier",
	},
	"closes the connection at once": {
		"http2/6.9.1: " + beyondWindow,
		"http2/6.9.1: " + beyondWindow + " on a stream",
	},
}

const beyondWindow = "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1"

// Our configuration of Envoy adds no failure to those of Envoy's defaults. h2spec has time limits, so it is not for
// every run.
func TestHTTP2ConformsAsFarAsEnvoyDoes(t *testing.T) {
	need.Chosen(t, "WANGELL_TEST_H2SPEC", "1, for the conformance tests h2spec: some minutes")
	pod := newHTTPPod(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	known := slices.Concat(slices.Collect(maps.Values(knownFailures))...)
	check := func(envoy string, at netip.AddrPort) {
		for name := range h2spec(t, at) {
			if !slices.Contains(known, name) {
				t.Errorf("%s fails %s", envoy, name)
			}
		}
	}
	check("with its defaults, Envoy", plainEnvoy(t, pod.at))
	r := runEnvoy(t)
	for name, protocol := range map[string]Protocol{"Auto": Auto, "HTTP2": HTTP2} {
		s := shop(t, pod.at)
		s.Protocol = protocol
		r.set(s)
		get(t, client(t, true), s.at())
		check(name, s.at())
	}
}

// plainEnvoy runs an Envoy with its defaults before a pod.
func plainEnvoy(t *testing.T, pod netip.AddrPort) netip.AddrPort {
	t.Helper()
	at := freePort(t)
	config := fmt.Sprintf(`
static_resources:
  listeners:
  - address: {socket_address: {address: %v, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: plain
          route_config:
            virtual_hosts:
            - {name: plain, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: pod}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: pod
    load_assignment:
      cluster_name: pod
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: %v, port_value: %d}}}
`, at.Addr(), at.Port(), pod.Addr(), pod.Port())
	cmd := exec.CommandContext(t.Context(), envoytest.Path(t), "--config-yaml", config, "--disable-hot-restart",
		"--concurrency", "2", "--log-level", "warning")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	listens(t, at, true)
	return at
}
