// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/screen"
)

// pullForgotten is how long after its last news a pull is no longer shown: it has failed or was given up.
const pullForgotten = 15 * time.Second

// barColumns is the width of a progress bar.
const barColumns = 30

// pulls are the images being fetched, by name.
type pulls map[string]pull

type pull struct {
	done, total int64
	at          time.Time
}

// see takes an event into account.
func (p pulls) see(e controller.Event) {
	if e.Kind != controller.EventPull {
		return
	}
	if e.Total > 0 && e.Done >= e.Total {
		delete(p, e.Image)
		return
	}
	p[e.Image] = pull{e.Done, e.Total, e.Time}
}

// lines shows each pull in a line, sorted by image.
func (p pulls) lines(now time.Time) []string {
	maps.DeleteFunc(p, func(_ string, p pull) bool { return now.Sub(p.at) > pullForgotten })
	var lines []string
	for _, image := range slices.Sorted(maps.Keys(p)) {
		lines = append(lines, fmt.Sprintf("pulling %s %s", screen.Bar(p[image].done, p[image].total, barColumns), image))
	}
	return lines
}
