// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// cpuOf returns the CPU time that a process has used, in ticks of 10 ms.
func cpuOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return user + system
}

// quantiles writes the median and the 99th percentile.
func quantiles(took []time.Duration) string {
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Microsecond) }
	return fmt.Sprintf("%d samples: p50 %v, p99 %v, longest %v", len(took), at(0.5), at(0.99), at(1))
}

// A hundred services with ten open connections each are frozen and used again, as often as WANGELL_TEST_FREEZES says.
// Every byte of every connection must come back. The test logs the times from a client's data to the answer, of one
// service at a time and of all at once, and what the instance's processes use of the CPU while everything is frozen.
func TestManyFrozenServicesKeepTheirConnections(t *testing.T) {
	rounds, err := strconv.Atoi(need.Chosen(t, "WANGELL_TEST_FREEZES", "the number of times that 100 services are frozen"))
	if err != nil {
		t.Fatal(err)
	}
	const services, each = 100, 10
	l := newLab(t, 1)
	var list []service
	for i := range services {
		list = append(list, freezing(lines(fmt.Sprintf("s%d", i)), ", freezeWhenBusy: true"))
	}
	u := l.start(t, list...)
	open := make([][]*e2e.Conversation, services)
	for i := range services {
		for range each {
			open[i] = append(open[i], e2e.MustConverse(t, l.Client(), l.address(t, list[i].name)))
		}
	}
	begin := 0
	allFrozen := func() {
		t.Helper()
		for _, s := range list {
			u.untilFrozen(t, begin, s.name)
		}
	}
	echo := func(k *e2e.Conversation, text string) time.Duration {
		began := time.Now()
		if got, err := k.Say(text); err != nil || !strings.Contains(got, text) {
			t.Errorf("said %q, got %q, %v", text, got, err)
		}
		return time.Since(began)
	}
	var single, storm, accepted []time.Duration
	for round := range rounds {
		allFrozen()
		begin = u.now()
		if round%2 == 0 {
			for i := range services {
				single = append(single, echo(open[i][round%each], fmt.Sprintf("round %d", round)))
			}
		} else {
			var group sync.WaitGroup
			took := make([]time.Duration, services)
			for i := range services {
				group.Go(func() { took[i] = echo(open[i][round%each], fmt.Sprintf("storm %d", round)) })
			}
			group.Wait()
			storm = append(storm, took...)
		}
	}
	allFrozen()
	begin = u.now()
	for i := range services {
		began := time.Now()
		k := e2e.MustConverse(t, l.Client(), l.address(t, list[i].name))
		accepted = append(accepted, time.Since(began))
		if err := k.End(); err != nil {
			t.Error(err)
		}
	}
	allFrozen()
	const watched = 60 * time.Second
	processes := append(l.processes(daemonProcess...), process{pid: u.cmd.Process.Pid, command: "up"})
	before := 0
	for _, p := range processes {
		before += cpuOf(t, p.pid)
	}
	time.Sleep(watched)
	after := 0
	for _, p := range processes {
		after += cpuOf(t, p.pid)
	}
	t.Logf("%d processes of an instance with %d frozen services: %.2f %% of a core", len(processes), services,
		float64(after-before)/watched.Seconds())
	for i := range services {
		for _, k := range open[i] {
			echo(k, "at last")
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("one service at a time, %s", quantiles(single))
	if len(storm) > 0 {
		t.Logf("%d services at once, %s", services, quantiles(storm))
	}
	t.Logf("new connections, to the greeting, %s", quantiles(accepted))
	t.Logf("%d connections, %d rounds; load average %s", services*each, rounds, load)
	for _, s := range list {
		if n := len(l.wakes(t, s.name)); n != 1 {
			t.Errorf("%s was started %d times", s.name, n)
		}
	}
}
