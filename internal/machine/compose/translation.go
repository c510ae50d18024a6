// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"wangell.loutres.me/api/v1alpha1"
)

// translation translates one service.
type translation struct {
	project *types.Project
	service *types.ServiceConfig
	options Options
	spec    v1alpha1.WangellServiceSpec
	notes   []Note
}

func (t *translation) lost(field, format string, args ...any) {
	t.notes = append(t.notes, Note{Service: t.service.Name, Field: field, Text: fmt.Sprintf(format, args...), Lost: true})
}

func (t *translation) assumed(field, format string, args ...any) {
	t.notes = append(t.notes, Note{Service: t.service.Name, Field: field, Text: fmt.Sprintf(format, args...)})
}

// label makes a name a DNS label.
func label(name string) string {
	out := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	return strings.Trim(out[:min(len(out), 63)], "-")
}

// hostOf returns the service whose network a service shares; empty if it has its own.
func hostOf(s *types.ServiceConfig) string {
	host, _ := strings.CutPrefix(s.NetworkMode, types.ServicePrefix)
	if host == s.NetworkMode {
		return ""
	}
	return host
}
