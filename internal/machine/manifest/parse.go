// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse returns one node per document of a file, without empty documents. On error it returns the documents before it
// too.
func parse(file string, text []byte) ([]*yaml.Node, *Error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if strings.HasSuffix(file, ".json") {
		return parseJSON(file, text)
	}
	// YAML includes nearly all of JSON, but not surrogate pairs in strings. Text that is valid JSON is read as JSON.
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		if docs, err := parseJSON(file, text); err == nil {
			return docs, nil
		}
	}
	docs, err := decodeYAML(text)
	if err != nil {
		return docs, syntaxError(file, text, err)
	}
	return docs, nil
}

// decodeYAML returns the documents before the first error.
func decodeYAML(text []byte) ([]*yaml.Node, error) {
	var docs []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, err
		}
		if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 && !isNull(doc.Content[0]) {
			docs = append(docs, doc.Content[0])
		}
	}
}

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?s).*)$`)

// messageOf splits an error of the YAML parser into its message and line; line is 0 if the error has none.
func messageOf(err error) (message string, line int) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error(), 0
	}
	line, _ = strconv.Atoi(m[1])
	return m[2], line
}

// syntaxError adds the place and a suggestion to an error of the YAML parser.
func syntaxError(file string, text []byte, err error) *Error {
	message, line := messageOf(err)
	e := &Error{File: file, Line: errorLine(text, message, max(line, 1)), Message: "YAML: " + message}
	switch {
	case strings.Contains(message, "tab character"),
		strings.Contains(message, "cannot start any token") && tabIndents(text, e.Line):
		e.Column, e.Message, e.Fix = 1, "YAML: this line is indented with a tab", "use two spaces per level"
	case strings.Contains(message, "mapping values are not allowed"):
		e.Fix = "check the indentation of this line and the one before, and quote text that contains \": \""
	case strings.Contains(message, "did not find expected key"),
		strings.Contains(message, "did not find expected '-' indicator"):
		e.Fix = "check that the lines of this block begin in the same column"
	case strings.Contains(message, "could not find expected ':'"):
		e.Fix = "write name: value"
	case strings.Contains(message, "unexpected end of stream"):
		e.Fix = "close the quote that begins here"
	case strings.Contains(message, "unknown anchor"):
		e.Message, e.Fix = "YAML: unknown anchor", "quote text that begins with *" // it may be a secret
	case strings.Contains(message, "control characters"), strings.Contains(message, "UTF-8"):
		e.Fix = "save the file as UTF-8 text"
	default:
		e.Fix = "check the quotes, brackets and indentation here and on the line before"
	}
	return e
}

// maxSearched is the largest text, in bytes, that errorLine searches.
const maxSearched = 1 << 20

// errorLine returns the line of a syntax error. The parser reports the line on which the block that it could not read
// begins, often far above the mistake. The mistake is on the last line of the shortest prefix of the text that has the
// same error.
func errorLine(text []byte, message string, reported int) int {
	if len(text) > maxSearched || strings.Contains(message, "unexpected end of stream") {
		return reported
	}
	var ends []int // of the lines
	for i, c := range text {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	ends = append(ends, len(text))
	return 1 + sort.Search(len(ends)-1, func(line int) bool {
		_, err := decodeYAML(text[:ends[line]])
		if err == nil {
			return false
		}
		got, _ := messageOf(err)
		return got == message
	})
}

// tabIndents reports whether a tab precedes the text of a line.
func tabIndents(text []byte, line int) bool {
	lines := bytes.SplitN(text, []byte("\n"), line+1)
	if line > len(lines) {
		return false
	}
	rest := bytes.TrimLeft(lines[line-1], " ")
	return bytes.HasPrefix(rest, []byte("\t"))
}
