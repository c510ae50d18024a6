// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

func TestRequestsGoToRevisionsThatAreThere(t *testing.T) {
	const begin = monotime.Time(1e12)
	traffic := func(percent ...uint8) wire.Traffic {
		var list []wire.Revision
		for i, p := range percent {
			list = append(list, wire.Revision{Service: fmt.Sprint("v", i+1), Percent: p, Tag: "tag"})
		}
		return wire.NewTraffic(wire.Sticky{}, list)
	}
	type step struct {
		after  time.Duration // since the begin
		wanted wire.Traffic
		there  string
		want   string
		again  time.Duration
		news   string
	}
	for name, steps := range map[string][]step{
		"all come at once": {
			{0, traffic(90, 10), "v1 v2", "v1 90 v2 10", 0, ""},
			{1, traffic(50, 50), "v1 v2", "v1 50 v2 50", 0, ""},
		},
		"they come one by one": {
			{0, traffic(90, 10), "", "", revisionsWait, ""},
			{time.Second, traffic(90, 10), "v2", "", revisionsWait - time.Second, ""},
			{2 * time.Second, traffic(90, 10), "v1 v2", "v1 90 v2 10", 0, ""},
		},
		"one never comes": {
			{0, traffic(90, 10), "v1", "", revisionsWait, ""},
			{revisionsWait, traffic(90, 10), "v1", "v1 90", 0, "v2"},
			{revisionsWait + 1, traffic(90, 10), "v1", "v1 90", 0, ""},
			{revisionsWait + 2, traffic(90, 10), "v1 v2", "v1 90 v2 10", 0, ""},
		},
		"none comes that gets requests": {
			{0, traffic(100, 0), "v2", "", revisionsWait, ""},
			{revisionsWait, traffic(100, 0), "v2", "", 0, "v1"},
		},
		"one is deleted": {
			{0, traffic(60, 30, 10), "v1 v2 v3", "v1 60 v2 30 v3 10", 0, ""},
			{1, traffic(60, 30, 10), "v2 v3", "v2 30 v3 10", 0, "v1"},
			{2, traffic(60, 30, 10), "v1 v2 v3", "v1 60 v2 30 v3 10", 0, ""},
			{3, traffic(60, 30, 10), "v2 v3", "v2 30 v3 10", 0, "v1"},
			{4, traffic(60, 30, 10), "", "", 0, "v1 v2 v3"},
		},
		"one is added before it is there": {
			{0, traffic(100), "v1", "v1 100", 0, ""},
			{time.Second, traffic(0, 100), "v1", "v1 100", revisionsWait, ""},
			{2 * time.Second, traffic(0, 100), "v1 v2", "v1 0 v2 100", 0, ""},
		},
		"one is added that never comes": {
			{0, traffic(100), "v1", "v1 100", 0, ""},
			{time.Second, traffic(0, 100), "v1", "v1 100", revisionsWait, ""},
			{time.Second + revisionsWait, traffic(0, 100), "v1", "v1 100", 0, "v2"},
			{time.Minute, traffic(50, 50), "v1", "v1 100", revisionsWait, ""},
			{2 * time.Minute, traffic(50, 50), "v1", "v1 50", 0, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l lead
			for i, s := range steps {
				there := map[string]bool{}
				for _, v := range strings.Fields(s.there) {
					there[v] = true
				}
				got, again := l.follow(s.wanted, there, begin.Add(s.after))
				var to []string
				for _, r := range got.Revisions {
					to = append(to, fmt.Sprint(r.Service, " ", r.Percent))
				}
				news := ""
				if again == 0 {
					news = strings.Join(l.news(), " ")
				}
				if text := strings.Join(to, " "); text != s.want || again != s.again || news != s.news {
					t.Errorf("step %d: %q, again %v, news %q, want %q, %v, %q", i, text, again, news, s.want, s.again, s.news)
				}
			}
		})
	}
	adopted := lead{}
	adopted.adopt()
	there := map[string]bool{"v1": true}
	if got, again := adopted.follow(traffic(90, 10), there, begin); len(got.Revisions) != 1 || again > 0 {
		t.Errorf("after the start of another daemon: %+v, again %v", got, again)
	}
	if got, again := adopted.follow(traffic(80, 20), there, begin); got.Revisions[0].Percent != 90 ||
		again != revisionsWait {
		t.Errorf("a change after that: %+v, again %v", got, again)
	}
}
