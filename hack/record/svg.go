// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"time"
)

// screen is the visible part of the recording, in characters.
type screen struct{ rows, cols int }

const (
	rowHeight = 18  // pixels
	colWidth  = 7.8 // pixels, of a 13 px monospaced font
	margin    = 14  // pixels
)

// svg draws lines that appear at their times, and scrolls when they do not fit. Without animations a viewer shows the
// first rows.
func (s screen) svg(lines []line) []byte {
	width, height := int(float64(s.cols)*colWidth)+2*margin, s.rows*rowHeight+2*margin
	total := time.Millisecond
	if n := len(lines); n > 0 {
		total += lines[n-1].at
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n",
		width, height, width, height)
	b.WriteString(`<title>Recording of a terminal</title>
<style>
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
text { fill: #d4dae3; white-space: pre }
.h { fill: #7fd1ae; font-weight: 600 } .c { fill: #ffd479 }
@keyframes wait { from { visibility: hidden } }
.l { animation: wait 1ms step-end }
`)
	// Lines are hidden until their time; a viewer without animations shows them all from the start.
	fmt.Fprintf(&b, "#page { animation: scroll %dms step-end forwards }\n@keyframes scroll {\n", total.Milliseconds())
	for i, l := range lines {
		if over := i + 1 - s.rows; over > 0 {
			fmt.Fprintf(&b, "%.3f%% { transform: translateY(-%dpx) }\n", 100*float64(l.at)/float64(total), over*rowHeight)
		}
	}
	fmt.Fprintf(&b, "to { transform: translateY(-%dpx) }\n}\n</style>\n", max(0, len(lines)-s.rows)*rowHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#12161d"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<clipPath id="screen"><rect x="0" y="%d" width="%d" height="%d"/></clipPath>`+"\n",
		margin, width, s.rows*rowHeight)
	b.WriteString(`<g clip-path="url(#screen)"><g id="page">` + "\n")
	for i, l := range lines {
		fmt.Fprintf(&b, `<text class="%s" style="animation-duration:%dms" x="%d" y="%d" xml:space="preserve">`,
			class(lines, i), l.at.Milliseconds(), margin, margin+(i+1)*rowHeight-5)
		_ = xml.EscapeText(&b, []byte(cut(l.text, s.cols))) // a bytes.Buffer never fails
		b.WriteString("</text>\n")
	}
	b.WriteString("</g></g>\n</svg>\n")
	return b.Bytes()
}

// class distinguishes commands and headings, which follow an empty line, from other output.
func class(lines []line, i int) string {
	switch {
	case strings.HasPrefix(lines[i].text, "$ "):
		return "l c"
	case i > 0 && lines[i-1].text == "" && lines[i].text != "":
		return "l h"
	}
	return "l"
}

// cut returns at most n characters of a line.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
