// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"strings"
)

// network shows settings that users often ask about. None of them stops Wangell.
func network(sysctls string) []Check {
	read := func(name string) (string, error) {
		data, err := os.ReadFile(filepath.Join(sysctls, name))
		return strings.TrimSpace(string(data)), err
	}
	note := func(c Check, name, text string) Check {
		value, err := read(name)
		if err != nil {
			return c.skipped(err.Error())
		}
		return c.ok(value + ": " + text)
	}
	return []Check{
		note(Check{Name: "ip_forward", Group: Network, For: "nothing; the gate forwards by itself, and pods' way out " +
			"needs it per device"},
			"net/ipv4/ip_forward", "not needed, left as it is"),
		note(Check{Name: "rp_filter", Group: Network,
			For: "information; strict (1) drops packets that return through another device"},
			"net/ipv4/conf/all/rp_filter", "left as it is"),
	}
}
