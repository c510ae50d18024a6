// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// colours of the phases, which people with any colour vision can tell apart (Okabe and Ito).
var colours = map[Phase]string{
	Resolve: "#56b4e9", Fetch: "#0072b2", Wait: "#e6e6e6", Prepare: "#999999", Decompress: "#e69f00", Hash: "#cc79a7",
	Apply: "#009e73", Fsync: "#d55e00", Finish: "#555555", Other: "#000000",
}

// Measures of the chart, in pixels.
const (
	svgWidth  = 960
	svgLeft   = 210 // where the bars begin
	svgRight  = 20
	svgTop    = 74
	svgRow    = 22
	svgBar    = 16
	svgBottom = 84
)

// WriteSVG writes the report as a chart: a bar for each layer, in which colours are phases, and one for the whole pull.
func WriteSVG(w io.Writer, r Report) error {
	bars := svgWidth - svgLeft - svgRight
	rows := len(r.Layers)*svgRow + svgRow/2
	height := svgTop + rows + svgRow + svgBottom
	x := func(seconds float64) float64 { return svgLeft + float64(bars)*seconds/max(r.Pull, 1e-9) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="12">`+"\n", svgWidth, height, svgWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", svgWidth, height)
	text := func(x, y float64, attributes, format string, args ...any) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, attributes,
			html.EscapeString(fmt.Sprintf(format, args...)))
	}
	bar := func(begin, end, y float64, p Phase) {
		fmt.Fprintf(&b, `<rect x="%.2f" y="%.1f" width="%.2f" height="%d" fill="%s"><title>%s %.2f s</title></rect>`+"\n",
			x(begin), y, x(end)-x(begin), svgBar, colours[p], p, end-begin)
	}
	text(10, 20, `font-size="15" font-weight="bold"`, "%s: %.2f s", r.Image, r.Pull)
	text(10, 38, `fill="#444444"`, "%s packed, %s unpacked, %d files; containerd %s (%s), %d cores", megabytes(r.Packed),
		megabytes(r.Unpacked), r.Files, r.Containerd, r.through(), r.Cores)
	bottom := float64(svgTop + rows + svgRow)
	step := tickStep(r.Pull)
	for i := 0; float64(i)*step <= r.Pull; i++ {
		at := float64(i) * step
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="#cccccc"/>`+"\n", x(at), svgTop-6, x(at), bottom)
		text(x(at), svgTop-10, `text-anchor="middle" fill="#444444"`, "%s s", number(at))
	}
	for i, l := range r.Layers {
		y := float64(svgTop + i*svgRow)
		text(svgLeft-8, y+12.5, `text-anchor="end"`, "%d  %s  %s %s", l.Number, shortDigest(l.Digest), l.Compression,
			megabytes(l.Packed))
		for _, s := range l.Spans {
			bar(s.Begin, s.End, y, s.Phase)
		}
	}
	y := float64(svgTop + rows)
	text(svgLeft-8, y+12.5, `text-anchor="end" font-weight="bold"`, "whole, divided")
	at := 0.0
	for _, p := range WholePhases {
		bar(at, at+r.Phases[p], y, p)
		at += r.Phases[p]
	}
	legend(&b, r, bottom+20, text)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// legend draws a box and the name of each phase, with its part of the pull.
func legend(b *strings.Builder, r Report, y float64, text func(x, y float64, attributes, format string, args ...any)) {
	for i, p := range append([]Phase{Wait}, WholePhases...) {
		left, top := 10+float64(i%5)*188, y+float64(i/5)*20
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="12" height="12" fill="%s"/>`+"\n", left, top-10, colours[p])
		if p == Wait {
			text(left+18, top, "", "%s (layers only)", p)
		} else {
			text(left+18, top, "", "%s %.2f s", p, r.Phases[p])
		}
	}
	text(10, y+54, `fill="#444444" font-size="11"`, "decompress, hash and apply take turns: containerd reports their "+
		"sum, a second pass over the layer the parts of it")
}

// tickStep returns 1, 2 or 5 times a power of ten, so that there are 4 to 10 steps.
func tickStep(length float64) float64 {
	if length <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(length/4)))
	for _, factor := range []float64{5, 2} {
		if length/(step*factor) >= 4 {
			return step * factor
		}
	}
	return step
}

// number prints a number without zeros at its end.
func number(x float64) string { return fmt.Sprintf("%.6g", x) }
