// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

const head = `<!-- Written by "make generate" from internal/wire. Do not edit. -->

# Messages

Fields in the order in which they are sent, without padding. Integers are unsigned and big endian. What an *address*, a
*time*, a *text*, a *name* and a *set* are is in [encoding](encoding.md#elements). What senders and receivers do with a
message is in [services](services.md), [nodes](nodes.md) and [images](images.md). Sizes are in bytes, and n is a length
that precedes the bytes. "X[].Y" is field Y of each element of X. *Reliable* messages arrive once and in order; *one
session* says that a message is not sent again in the next session.

`

// page returns the page of all messages.
func (s *source) page() []byte {
	var b bytes.Buffer
	b.WriteString(head)
	names, structs := s.names(), s.messages()
	kinds := slices.Clone(s.kinds)
	slices.SortFunc(kinds, func(x, y enum) int { return cmp.Compare(number(x.value), number(y.value)) })
	unreliable, scoped := s.mentions("reliable"), s.mentions("sessionScoped")

	b.WriteString("| type | message | from | reliable | what it says |\n|---|---|---|---|---|\n")
	used := map[string]bool{}
	for _, k := range kinds {
		from, what, _ := strings.Cut(k.comment, ": ")
		reliable := "yes"
		if unreliable[k.name] {
			reliable = "no"
		} else if scoped[k.name] {
			reliable = "yes, one session"
		}
		sender, _, _ := strings.Cut(from, " →")
		if strings.Count(from, "→") > 1 {
			sender = "both"
		}
		name := names[k.name]
		fmt.Fprintf(&b, "| %s | [%s](#%s) | %s | %s | %s |\n", k.value, name, strings.ToLower(name), sender, reliable, what)
	}
	done := map[string]string{} // the first message of a struct
	for _, k := range kinds {
		t := structs[k.name]
		fmt.Fprintf(&b, "\n## %s\n\n", names[k.name])
		if first, ok := done[t]; ok {
			fmt.Fprintf(&b, "Type %s. As [%s](#%s), with the fields that the latter lacks.\n", k.value, first,
				strings.ToLower(first))
			continue
		}
		done[t] = names[k.name]
		fmt.Fprintf(&b, "Type %s. %s\n\n", k.value, s.text(s.docs[t]))
		s.table(&b, s.rowsOf(t), used)
	}
	s.elements(&b, used, structs)
	return b.Bytes()
}

// elements writes the tables of what the messages refer to.
func (s *source) elements(b *bytes.Buffer, used map[string]bool, structs map[string]string) {
	messages := map[string]bool{}
	for _, t := range structs {
		messages[t] = true
	}
	done := map[string]bool{}
	for {
		var next []string
		for name := range used {
			if !done[name] {
				next = append(next, name)
			}
		}
		if len(next) == 0 {
			break
		}
		slices.Sort(next)
		for _, name := range next {
			done[name] = true
			if messages[name] {
				continue // it is on the page already
			}
			fmt.Fprintf(b, "\n## %s\n\n%s\n\n", name, s.text(s.docs[name]))
			if e := s.enums[name]; len(e) > 0 {
				values(b, e, s)
			} else {
				s.table(b, s.rowsOf(name), used)
			}
			if name == "Service" {
				b.WriteString("\nFlags:\n\n")
				values(b, s.enums["Flag"], s)
			}
		}
	}
}

// values writes a table of named values.
func values(b *bytes.Buffer, list []enum, s *source) {
	b.WriteString("| value | name | meaning |\n|---|---|---|\n")
	for _, e := range list {
		fmt.Fprintf(b, "| %s | %s | %s |\n", e.value, e.name, s.text(e.comment))
	}
}

// table writes fields, and notes the elements and enumerations that they refer to.
func (s *source) table(b *bytes.Buffer, rows []row, used map[string]bool) {
	b.WriteString("| field | size | type | meaning |\n|---|---|---|---|\n")
	for _, r := range rows {
		kind := r.kind
		first, last, _ := strings.Cut(kind, " ")
		for _, name := range []string{first, last} {
			if s.enums[name] != nil || s.structs[name] != nil {
				used[name] = true
				kind = strings.Replace(kind, name, fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name)), 1)
			}
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", r.field, r.size, kind, s.text(r.meaning))
	}
}

// text makes a comment fit a page for readers without the source: values for the names of constants.
func (s *source) text(comment string) string {
	return strings.ReplaceAll(s.inWords(comment), "|", `\|`)
}

// names returns how the protocol calls each type.
func (s *source) names() map[string]string {
	names := map[string]string{}
	ast.Inspect(s.funcs["Type.String"].Body, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			if name, err := strconv.Unquote(kv.Value.(*ast.BasicLit).Value); err == nil {
				names[kv.Key.(*ast.Ident).Name] = name
			}
		}
		return true
	})
	return names
}

// messages returns the struct of each type.
func (s *source) messages() map[string]string {
	structs := map[string]string{}
	ast.Inspect(s.funcs["newMessage"].Body, func(n ast.Node) bool {
		if c, ok := n.(*ast.CaseClause); ok && len(c.List) == 1 {
			ret := c.Body[0].(*ast.ReturnStmt).Results[0].(*ast.UnaryExpr).X.(*ast.CompositeLit)
			structs[c.List[0].(*ast.Ident).Name] = typeName(ret.Type)
		}
		return true
	})
	return structs
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
