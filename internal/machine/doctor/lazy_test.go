// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"
)

func TestLazyPodsNeedARuntimeAndTheNameOfTheImage(t *testing.T) {
	told := map[string]string{"enable_remote_snapshot_annotations": "true"}
	for _, c := range []struct {
		handlers []string
		exports  map[string]string
		state    State
		do       string
	}{
		{[]string{"", "runc"}, told, Warn, "the runtime wangell-lazy"},
		{[]string{"runc", "wangell-lazy"}, nil, Warn, "the exports of the plugin"},
		{[]string{"runc", "wangell-lazy"}, told, OK, ""},
	} {
		got := Check{}.judgeLazyPods(c.handlers, c.exports)
		if got.State != c.state || !strings.Contains(got.Do, c.do) || c.state == OK && got.Do != "" {
			t.Errorf("%v, %v: %+v", c.handlers, c.exports, got)
		}
	}
}
