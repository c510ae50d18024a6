// SPDX-License-Identifier: Apache-2.0

package mariadb

import (
	"bytes"
	"strings"
	"testing"
)

func TestFirstColumnOfARow(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name string
		row  []byte
		want string
		bad  bool
	}{
		{"one column", []byte("\x0242"), "42", false},
		{"two columns", []byte("\x0242\x01z"), "42", false},
		{"empty", []byte("\x00"), "", false},
		{"long", append([]byte{0xfc, 0x2c, 0x01}, long...), long, false},
		{"null", []byte{isNull}, "", true},
		{"cut", []byte("\x05ab"), "", true},
		{"cut length", []byte{0xfe, 1}, "", true},
		{"overflow", append([]byte{0xfe}, bytes.Repeat([]byte{0xff}, 8)...), "", true},
	} {
		if got, err := firstValue(c.row); got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}
