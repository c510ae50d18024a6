// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// parseRecord parses a line of slog's JSON handler, without its time. Any other line is a message of level Error.
func parseRecord(line []byte) (slog.Level, string, []slog.Attr) {
	text := strings.TrimRight(string(line), "\r\n")
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber() // an ID of 64 bits is no float64
	if decoder.Decode(&fields) != nil || decoder.More() {
		return slog.LevelError, text, nil
	}
	message, isText := fields[slog.MessageKey].(string)
	name, _ := fields[slog.LevelKey].(string)
	var level slog.Level
	if !isText || level.UnmarshalText([]byte(name)) != nil {
		return slog.LevelError, text, nil
	}
	var attrs []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch key {
		case slog.TimeKey, slog.LevelKey, slog.MessageKey:
		default:
			attrs = append(attrs, slog.Any(key, fields[key]))
		}
	}
	return level, message, attrs
}
