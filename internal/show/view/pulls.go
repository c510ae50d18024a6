// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"wangell.loutres.me/internal/show/screen"
	"wangell.loutres.me/internal/status"
)

// pullForgotten is how long a pull without a further event is shown; after that, it must have failed.
const pullForgotten = 15 * time.Second

// barColumns is the width of a progress bar.
const barColumns = 30

// pulls are the images that are being fetched, by name.
type pulls map[string]pull

// pull is the progress of a pull, in bytes.
type pull struct {
	done, total int64
	at          time.Time
}

// see records an event.
func (p pulls) see(e status.Event) {
	if e.Kind != status.EventPull {
		return
	}
	if e.Total > 0 && e.Done >= e.Total {
		delete(p, e.Image)
		return
	}
	p[e.Image] = pull{e.Done, e.Total, e.Time}
}

// lines returns one line for each pull, sorted by image.
func (p pulls) lines(now time.Time) []string {
	maps.DeleteFunc(p, func(_ string, p pull) bool { return now.Sub(p.at) > pullForgotten })
	var lines []string
	for _, image := range slices.Sorted(maps.Keys(p)) {
		lines = append(lines, fmt.Sprintf("pulling %s %s", screen.Bar(p[image].done, p[image].total, barColumns), image))
	}
	return lines
}
