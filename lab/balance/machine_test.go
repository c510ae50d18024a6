// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"testing"
	"time"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/envoytest"
	"wangell.loutres.me/test/testutil/need"
)

// TestMachineRunsAndLeavesNothing runs two patterns with a wangell built from this tree. It checks that the experiment
// works and cleans up, not how long things take.
func TestMachineRunsAndLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	params := Params{
		Machine: true, Wangell: wangell, Envoy: envoytest.Path(t), Patterns: []string{"one_connection", "work_pool_20"},
		Rounds: 2, Time: time.Second,
	}
	reports, err := params.Run(ctx, lab.Output{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]float64{
		"failed_requests_wangell": 0, "failed_requests_wangell_request": 0,
	} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	// All on one pod would be 5. On a busy machine net/http replaces the connection (maxWriteWaitBeforeConnReuse).
	if got := r.Summary.Get("one_connection_busiest_over_mean_wangell"); got < 3 {
		t.Errorf("requests of one connection go to several pods: busiest over mean %v", got)
	}
	if got := r.Summary.Get("one_connection_busiest_over_mean_wangell_request"); got > 1.5 {
		t.Errorf("requests of one connection are not balanced: busiest over mean %v", got)
	}
	for _, key := range []string{"one_connection_request_over_connection", "work_pool_20_request_over_connection",
		"envoy_cores_per_1000_req_per_s", "work_envoy_memory_mib"} {
		if got := r.Summary.Get(key); got <= 0 {
			t.Errorf("%s is %v", key, got)
		}
	}
	if r.Versions["envoy"] == "" || r.Name != machineName {
		t.Errorf("report %s, versions %v", r.Name, r.Versions)
	}
}
