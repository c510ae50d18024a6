// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"strings"
)

// network tells of settings that people ask about first; none of them stops Wangell.
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
		note(Check{Name: "ip_forward", Group: Network, For: "nothing: the gate forwards by itself"},
			"net/ipv4/ip_forward", "not needed, not changed"),
		note(Check{Name: "rp_filter", Group: Network, For: "a note: strict (1) drops what comes back by another device"},
			"net/ipv4/conf/all/rp_filter", "not changed"),
	}
}
