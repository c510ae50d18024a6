// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse makes one node a document of a file's text; empty documents are left out. It returns what
// came before an error, too.
func parse(file string, text []byte) ([]*yaml.Node, *Error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if strings.HasSuffix(file, ".json") {
		return parseJSON(file, text)
	}
	// JSON is nearly YAML; where the two differ (surrogate pairs in strings), text that is JSON
	// is read as JSON.
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		if docs, err := parseJSON(file, text); err == nil {
			return docs, nil
		}
	}
	return parseYAML(file, text)
}

func parseYAML(file string, text []byte) ([]*yaml.Node, *Error) {
	docs, err := decodeYAML(text)
	if err != nil {
		return docs, syntaxError(file, text, err)
	}
	return docs, nil
}

// decodeYAML returns the documents of a text that come before its first error.
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

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?s).*)$`)

// messageOf is an error of the YAML parser without its place, and the line it tells, if any.
func messageOf(err error) (message string, line int) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error(), 0
	}
	line, _ = strconv.Atoi(m[1])
	return m[2], line
}

// syntaxError gives an error of the YAML parser its place and a way out.
func syntaxError(file string, text []byte, err error) *Error {
	message, line := messageOf(err)
	e := &Error{File: file, Line: errorLine(text, message, max(line, 1)), Message: "YAML: " + message}
	switch {
	case strings.Contains(message, "tab character"),
		strings.Contains(message, "cannot start any token") && tabIndents(text, e.Line):
		e.Column, e.Message, e.Fix = 1, "YAML: a tab indents this line", "write spaces, two a level"
	case strings.Contains(message, "mapping values are not allowed"):
		e.Fix = "check the indentation of this line and the one before, and put text that has \": \" in it into quotes"
	case strings.Contains(message, "did not find expected key"),
		strings.Contains(message, "did not find expected '-' indicator"):
		e.Fix = "check that the lines of this block begin in the same column"
	case strings.Contains(message, "could not find expected ':'"):
		e.Fix = "write name: value"
	case strings.Contains(message, "unexpected end of stream"):
		e.Fix = "close the quote that begins here"
	case strings.Contains(message, "unknown anchor"):
		e.Fix = "put text that begins with * into quotes"
	case strings.Contains(message, "control characters"), strings.Contains(message, "UTF-8"):
		e.Fix = "save the file as UTF-8 text"
	default:
		e.Fix = "check the quotes, brackets and indentation here and in the line before"
	}
	return e
}

// maxSearched is how large a text may be in which the line of an error is searched.
const maxSearched = 1 << 20

// errorLine returns the line of an error. The parser tells the line where the block begins that it
// could not read, often far above; the true line is the last one of the shortest part of the text
// that has the error.
func errorLine(text []byte, message string, told int) int {
	if len(text) > maxSearched || strings.Contains(message, "unexpected end of stream") {
		return told
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

// tabIndents tells whether there is a tab before the text of a line.
func tabIndents(text []byte, line int) bool {
	lines := bytes.SplitN(text, []byte("\n"), line+1)
	if line > len(lines) {
		return false
	}
	rest := bytes.TrimLeft(lines[line-1], " ")
	return bytes.HasPrefix(rest, []byte("\t"))
}

// maxJSONDepth bounds how deep JSON may nest; a manifest needs less than ten.
const maxJSONDepth = 100

// jsonParser makes YAML nodes of JSON text, so that both are checked by the same code.
type jsonParser struct {
	text []byte
	dec  *json.Decoder
	// at is an offset into text, line and column are its place, counted from 1.
	at           int64
	line, column int
}

func parseJSON(file string, text []byte) ([]*yaml.Node, *Error) {
	p := &jsonParser{text: text, dec: json.NewDecoder(bytes.NewReader(text)), line: 1, column: 1}
	p.dec.UseNumber()
	var docs []*yaml.Node
	for {
		n, err := p.value(0)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, p.syntaxError(file, err)
		}
		if !isNull(n) {
			docs = append(docs, n)
		}
	}
}

func (p *jsonParser) syntaxError(file string, err error) *Error {
	var syntax *json.SyntaxError
	at := p.dec.InputOffset()
	if errors.As(err, &syntax) {
		at = max(at, syntax.Offset-1)
	}
	p.advance(at)
	return &Error{File: file, Line: p.line, Column: p.column, Message: "JSON: " + err.Error(),
		Fix: "check commas, quotes and brackets here and in the line before"}
}

// advance moves the place forward to an offset.
func (p *jsonParser) advance(to int64) {
	for ; p.at < min(to, int64(len(p.text))); p.at++ {
		if p.text[p.at] == '\n' {
			p.line++
			p.column = 1
		} else {
			p.column++
		}
	}
}

// token reads a token and leaves the place at its beginning.
func (p *jsonParser) token() (json.Token, error) {
	from := p.dec.InputOffset()
	for from < int64(len(p.text)) && strings.IndexByte(" \t\r\n,:", p.text[from]) >= 0 {
		from++
	}
	t, err := p.dec.Token()
	if err == nil {
		p.advance(from)
	}
	return t, err
}

func (p *jsonParser) value(depth int) (*yaml.Node, error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: p.line, Column: p.column}
	switch t := t.(type) {
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		n.Tag, n.Value = "!!int", t.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(t)
	case nil:
		n.Tag, n.Value = "!!null", "null"
	case json.Delim:
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
		if t == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		err = p.members(n, depth)
	}
	return n, err
}

// members reads what is in an object or array, and its end.
func (p *jsonParser) members(n *yaml.Node, depth int) error {
	if depth == maxJSONDepth {
		return fmt.Errorf("nested deeper than %d levels", maxJSONDepth)
	}
	for p.dec.More() {
		child, err := p.value(depth + 1)
		if err != nil {
			return noEOF(err)
		}
		n.Content = append(n.Content, child)
	}
	_, err := p.token()
	return noEOF(err)
}

// noEOF tells the end of the text inside a value from the end after one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
