// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"wangell.loutres.me/internal/status"
)

// PodUse is the usage of a container of a pod, with its activity between two measurements.
type PodUse struct {
	status.PodUsage
	// Cores is the CPU in use between the measurements, in cores. ThrottledPercent is the share of the periods
	// between them in which it used up its CPU limit and paused, 0 without a limit.
	Cores            float64 `json:"cores"`
	ThrottledPercent float64 `json:"throttledPercent"`
}

// PodUses compares two measurements of containers. Those that are not in both are left out.
func PodUses(before, after []status.PodUsage) []PodUse {
	type id struct{ pod, container string }
	earlier := map[id]status.PodUsage{}
	for _, u := range before {
		earlier[id{u.Pod, u.Container}] = u
	}
	uses := []PodUse{}
	for _, u := range after {
		b, ok := earlier[id{u.Pod, u.Container}]
		span := u.At.Sub(b.At).Seconds()
		if !ok || span <= 0 {
			continue
		}
		use := PodUse{PodUsage: u, Cores: max(u.CPUSeconds-b.CPUSeconds, 0) / span}
		if u.Periods > b.Periods && u.Throttled >= b.Throttled {
			use.ThrottledPercent = 100 * float64(u.Throttled-b.Throttled) / float64(u.Periods-b.Periods)
		}
		uses = append(uses, use)
	}
	slices.SortStableFunc(uses, func(a, b PodUse) int { return cmp.Compare(a.Service, b.Service) })
	return uses
}

// Stats writes a table of what containers use.
func Stats(w io.Writer, uses []PodUse) error {
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tPOD\tCONTAINER\tRESTARTS\tCPU\tMEMORY\tLIMIT\tTHROTTLED\tTHROTTLED TOTAL\tCPU TIME")
	for _, u := range uses {
		limit := "-"
		if u.MemoryLimitBytes > 0 {
			limit = mebibytes(u.MemoryLimitBytes)
		}
		now, total := "-", "-"
		if u.Periods > 0 {
			now = fmt.Sprintf("%.0f %%", u.ThrottledPercent)
			total = fmt.Sprintf("%d of %d (%.1f s)", u.Throttled, u.Periods, u.ThrottledSeconds)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%.1f %%\t%s\t%s\t%s\t%s\t%.1f s\n", u.Service, u.Pod, u.Container, u.Restarts,
			100*u.Cores, mebibytes(u.MemoryBytes), limit, now, total, u.CPUSeconds)
	}
	return t.Flush()
}

// mebibytes formats a number of bytes as manifests do.
func mebibytes(n uint64) string { return fmt.Sprintf("%.1f Mi", float64(n)/(1<<20)) }
