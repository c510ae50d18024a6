// SPDX-License-Identifier: Apache-2.0

package pullstat

import "testing"

func TestOnlyVersionsThatDoItRightUnpackInParallel(t *testing.T) {
	for version, want := range map[string]bool{
		"1.6.20": false, "1.7.29": false, "2.0.0": false, "2.2.2": false, "2.2.3": true, "2.3.0-rc.1": true, "2.10.0": true,
		"3.0.0": true, "unknown": false,
	} {
		if got := UnpacksInParallel(version); got != want {
			t.Errorf("%s: %v", version, got)
		}
	}
}
