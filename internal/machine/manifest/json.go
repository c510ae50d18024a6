// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxJSONDepth bounds how deep JSON may nest; a manifest nests less than ten levels deep.
const maxJSONDepth = 100

// jsonParser converts JSON text to YAML nodes, so that both formats are checked by the same code.
type jsonParser struct {
	text []byte
	dec  *json.Decoder
	// at is an offset into text; line and column are the same place, counted from 1.
	at           int64
	line, column int
}

// parseJSON returns one node per value in the text, without null values. On error it returns the values before it too.
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
		Fix: "check commas, quotes and brackets here and on the line before"}
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

// token reads a token and sets the place to its beginning.
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

// members reads the members of an object or array and its closing bracket.
func (p *jsonParser) members(n *yaml.Node, depth int) error {
	if depth == maxJSONDepth {
		return fmt.Errorf("nested deeper than %d levels", maxJSONDepth)
	}
	for p.dec.More() {
		child, err := p.value(depth + 1)
		if err != nil {
			return unexpectedEOF(err)
		}
		n.Content = append(n.Content, child)
	}
	_, err := p.token()
	return unexpectedEOF(err)
}

// unexpectedEOF turns io.EOF inside a value into io.ErrUnexpectedEOF, because only io.EOF after a value ends the text.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
