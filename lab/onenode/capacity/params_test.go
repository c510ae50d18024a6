// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"slices"
	"testing"
)

func TestSizesGrowToTheRequestedNumber(t *testing.T) {
	for _, c := range []struct {
		services int
		want     []int
	}{{10000, []int{1, 1000, 2500, 5000, 10000}}, {200, []int{1, 20, 50, 100, 200}}, {3, []int{1, 3}}, {1, []int{1}}} {
		if got := (Params{Services: c.services}).sizes(); !slices.Equal(got, c.want) {
			t.Errorf("%d services: sizes %v, want %v", c.services, got, c.want)
		}
	}
}
