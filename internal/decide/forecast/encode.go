// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MaxEncoded is the greatest length of an encoded History, in bytes.
const MaxEncoded = 4096

// encoded is the form in which a History is kept. Bins has the counts of the bins that are not empty, such as "5:12
// 59:3"; Recent are seconds.
type encoded struct {
	Last   *time.Time `json:"last,omitempty"`
	Bins   string     `json:"bins,omitempty"`
	Beyond int        `json:"beyond,omitempty"`
	Recent []int64    `json:"recent,omitempty"`
}

// Encode returns the history as JSON of at most MaxEncoded bytes; empty for an empty history.
func (h *History) Encode() string {
	if h.last.IsZero() {
		return ""
	}
	last := h.last.UTC().Truncate(time.Second)
	e := encoded{Last: &last, Beyond: h.beyond}
	var b strings.Builder
	for i, c := range h.counts {
		if c > 0 {
			fmt.Fprintf(&b, " %d:%d", i, c)
		}
	}
	e.Bins = strings.TrimPrefix(b.String(), " ")
	for _, r := range h.recent {
		e.Recent = append(e.Recent, int64(r/time.Second))
	}
	text, err := json.Marshal(e)
	if err != nil {
		panic("forecast: " + err.Error()) // the types can be encoded
	}
	return string(text)
}

// Decode parses what Encode returned. Text that Encode cannot have written is an error.
func Decode(text string) (*History, error) {
	h := &History{}
	if text == "" {
		return h, nil
	}
	if len(text) > MaxEncoded {
		return nil, fmt.Errorf("history of uses: %d bytes: want at most %d", len(text), MaxEncoded)
	}
	var e encoded
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return nil, fmt.Errorf("history of uses: %w", err)
	}
	for _, field := range strings.Fields(e.Bins) {
		bin, count, _ := strings.Cut(field, ":")
		i, err := strconv.Atoi(bin)
		c, err2 := strconv.ParseUint(count, 10, 16)
		if err != nil || err2 != nil || i < 0 || i >= bins || c >= most || h.counts[i] != 0 {
			return nil, fmt.Errorf("history of uses: %q is not the count of a bin", field)
		}
		h.counts[i] = uint16(c)
		h.within += int(c)
	}
	if e.Beyond < 0 || h.within+e.Beyond >= most || len(e.Recent) > recents || e.Last == nil {
		return nil, fmt.Errorf("history of uses: its numbers cannot be: beyond %d, %d recent ones", e.Beyond, len(e.Recent))
	}
	for _, r := range e.Recent {
		if r < int64(Bin/time.Second) || r > int64(longest/time.Second) {
			return nil, fmt.Errorf("history of uses: %d s is not an idle time", r)
		}
		h.recent = append(h.recent, time.Duration(r)*time.Second)
	}
	if h.Len() > 0 && len(h.recent) == 0 {
		return nil, fmt.Errorf("history of uses: the recent ones are missing")
	}
	h.beyond, h.last = e.Beyond, *e.Last
	return h, nil
}
