// SPDX-License-Identifier: Apache-2.0

// Package text writes numbers and texts for people: numbers of bytes, and texts cut to a length. Its functions are
// pure.
package text

import "fmt"

// Bytes formats a number of bytes with about three digits, in units of 1024: "0 B", "1.5 GiB".
func Bytes(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	const units = "KMGTPE"
	f := float64(n) / (1 << 10)
	i := 0
	for ; f >= 1023.95 && i < len(units)-1; i++ {
		f /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

// BytesLimit is Bytes for a limit, where 0 means none.
func BytesLimit(n int64) string {
	if n == 0 {
		return "no limit"
	}
	return Bytes(n)
}
