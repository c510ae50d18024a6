// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/printer"
	"go/token"
	"strings"
)

// A row is a field as it is on the wire.
type row struct {
	field, size, kind, meaning string
	comment                    string // of the field, or in the line that reads it
}

// fieldKinds are the methods of the decoder that read a field: how the page calls what they read, and its size.
var fieldKinds = map[string][2]string{
	"u8": {"u8", "1"}, "u16": {"u16", "2"}, "u32": {"u32", "4"}, "u64": {"u64", "8"}, "time": {"time", "8"},
	"flag": {"u8 flags", "1"}, "addr": {"address", "18"}, "ip": {"bare address", "16"}, "prefix": {"prefix", "17"},
	"text": {"text", "1 + n"}, "name": {"name", "2 + n"}, "set": {"set", "1 + n"},
	"take": {"bytes", ""}, "str": {"bytes", ""},
}

// A reader follows the fields that a decode method reads, in their order.
type reader struct {
	*source
	rows  []row
	types map[string]string // of local variables, by name
	notes map[string]string // what the bits of local variables mean, by name
	path  string            // of the elements that a loop reads
	whole string            // the type whose fields are being read
	when  string            // under which the present field is there
}

// rowsOf returns the fields of a type that has a decode method.
func (s *source) rowsOf(name string) []row {
	r := &reader{source: s, types: map[string]string{}, notes: map[string]string{}, whole: name}
	r.function(s.funcs[name+".decode"])
	for i := range r.rows {
		w := &r.rows[i]
		if _, of, ok := strings.Cut(w.field, "number of "); ok && w.meaning == "" {
			w.meaning = "how many " + of + " follow"
		}
	}
	return r.rows
}

// elements is how the page calls what a loop over a number reads: the type being read is an encoded list of them.
func (r *reader) elements() string {
	if r.whole == "Ports" {
		return r.whole
	}
	return "Revisions"
}

// function reads what a function or method with a decoder reads.
func (r *reader) function(f *ast.FuncDecl) {
	if f == nil {
		return
	}
	lists := []*ast.FieldList{f.Recv, f.Type.Params, f.Type.Results}
	for _, l := range lists {
		if l == nil {
			continue
		}
		for _, p := range l.List {
			for _, n := range p.Names {
				r.types[n.Name] = typeName(p.Type)
			}
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, x := range n.Rhs {
				if len(n.Lhs) == len(n.Rhs) {
					r.note(r.fieldName(n.Lhs[i]), x)
				}
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok {
				r.note(id.Name, n.Value)
			}
		}
		return true
	})
	r.block(f.Body.List)
}

// note notes that a field is some bits of a local variable, if an expression says so.
func (r *reader) note(field string, x ast.Expr) {
	if c, ok := x.(*ast.CallExpr); ok && len(c.Args) == 1 {
		x = c.Args[0] // a conversion
	}
	b, ok := x.(*ast.BinaryExpr)
	if !ok {
		return
	}
	if id, ok := b.X.(*ast.Ident); ok && b.Op == token.AND_NOT {
		r.notes[id.Name] = field + " in the bits that are not named here. " + r.notes[id.Name]
	}
	if and, ok := b.X.(*ast.BinaryExpr); ok && and.Op == token.AND && b.Op == token.NEQ {
		if id, ok := and.X.(*ast.Ident); ok {
			r.notes[id.Name] += fmt.Sprintf("%s: %s. ", r.inWords(r.print(and.Y)), field)
		}
	}
}

// block reads statements. An if that leaves the block makes the rest of it conditional.
func (r *reader) block(list []ast.Stmt) {
	outer := r.when
	for _, st := range list {
		r.statement(st)
		if i, ok := st.(*ast.IfStmt); ok && leaves(i.Body) && !fails(i.Body) {
			r.when = and(r.when, "unless "+r.condition(i.Cond))
		}
	}
	r.when = outer
}

func (r *reader) statement(st ast.Stmt) {
	outer, path := r.when, r.path
	switch st := st.(type) {
	case *ast.IfStmt:
		if st.Init != nil {
			r.counted(st)
		}
		r.expression(st.Cond, "", "")
		if fails(st.Body) {
			return
		}
		if c := r.condition(st.Cond); c != "" {
			r.when = and(r.when, "if "+c)
		}
		r.block(st.Body.List)
	case *ast.ForStmt:
		r.block(st.Body.List)
	case *ast.RangeStmt:
		r.expression(st.X, "", "number of "+r.elements())
		whole := r.whole
		if name := r.fieldName(st.X); name != "" {
			of, _ := r.fieldOf(st.X)
			_, t := r.field(of, name)
			length := ""
			if a, ok := t.(*ast.ArrayType); ok && a.Len != nil {
				length = r.inWords(r.print(a.Len))
			}
			r.path += name + "[" + length + "]."
			r.whole = r.typeOf(st.X)
		} else {
			r.path += r.elements() + "[]." // a loop over a number
		}
		r.block(st.Body.List)
		r.whole = whole
	case *ast.SwitchStmt:
		for _, c := range st.Body.List {
			clause := c.(*ast.CaseClause)
			if len(clause.List) > 0 {
				if c := r.condition(clause.List[0]); c != "" {
					r.when = and(outer, "if "+c)
				}
			}
			r.block(clause.Body)
			r.when = outer
		}
	case *ast.AssignStmt:
		r.assign(st)
	case *ast.ExprStmt:
		r.expression(st.X, "", "")
	case *ast.ReturnStmt:
		for _, x := range st.Results {
			r.expression(x, "", "")
		}
	}
	r.when, r.path = outer, path
}

// counted reads the number of elements ahead of the slice that an if statement makes for them.
func (r *reader) counted(st *ast.IfStmt) {
	name := ""
	if a, ok := st.Body.List[0].(*ast.AssignStmt); ok {
		name = r.fieldName(a.Lhs[0])
	}
	a := st.Init.(*ast.AssignStmt)
	if name == "" {
		r.assign(a)
		return
	}
	r.expression(a.Rhs[0], "", "number of "+name)
	if c, ok := a.Rhs[0].(*ast.CallExpr); ok { // of a number that was read before
		r.rename(r.print(c.Args[0]), name)
	}
}

// rename makes a local variable the number of elements of a slice.
func (r *reader) rename(local, slice string) {
	for i := range r.rows {
		if r.rows[i].field == r.path+local {
			r.rows[i].field = r.path + "number of " + slice
		}
	}
}

func (r *reader) assign(a *ast.AssignStmt) {
	for i, x := range a.Rhs {
		if u, ok := x.(*ast.UnaryExpr); ok && len(a.Lhs) == 1 { // p := &m.Pods[i]
			if e, ok := u.X.(*ast.IndexExpr); ok {
				if id, ok := a.Lhs[0].(*ast.Ident); ok {
					r.types[id.Name] = r.typeOf(e.X)
					continue
				}
			}
		}
		of, name := "", ""
		if i < len(a.Lhs) {
			of, name = r.fieldOf(a.Lhs[i])
		}
		if c, ok := x.(*ast.CallExpr); ok && len(c.Args) == 2 && r.print(c.Fun) == "make" {
			r.rename(r.print(c.Args[1]), name)
			continue
		}
		r.expression(x, of, name)
	}
}

// expression reads the fields that an expression reads. It is the value of a field of a struct.
func (r *reader) expression(x ast.Expr, of, name string) {
	switch x := x.(type) {
	case *ast.CompositeLit:
		t := typeName(x.Type)
		for i, e := range x.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				r.expression(kv.Value, t, kv.Key.(*ast.Ident).Name)
			} else {
				r.expression(e, t, r.fieldAt(t, i))
			}
		}
	case *ast.UnaryExpr:
		r.expression(x.X, of, name)
	case *ast.ParenExpr:
		r.expression(x.X, of, name)
	case *ast.StarExpr:
		r.expression(x.X, of, name)
	case *ast.BinaryExpr:
		r.expression(x.X, of, name)
		r.expression(x.Y, of, name)
	case *ast.SliceExpr:
		r.expression(x.X, of, name)
	case *ast.CallExpr:
		r.call(x, of, name)
	}
}

func (r *reader) call(c *ast.CallExpr, of, name string) {
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		if r.base(f.X) == "decoder" {
			r.decoder(f.Sel.Name, c, of, name)
			return
		}
		if f.Sel.Name == "decode" { // an element with a method of its own
			element, name := r.fieldOf(f.X)
			if _, t := r.field(element, name); t != nil {
				r.add(element, name, row{size: "n", kind: typeName(t)})
			}
			return
		}
		if m := r.funcs[r.base(f.X)+"."+f.Sel.Name]; m != nil && r.decodes(c) {
			r.inline(m)
			return
		}
	case *ast.Ident:
		switch {
		case f.Name == "copy":
			dst := c.Args[0]
			if s, ok := dst.(*ast.SliceExpr); ok {
				dst = s.X
			}
			of, name = r.fieldOf(dst)
			r.expression(c.Args[1], of, name)
			return
		case f.Name == "decodePods":
			r.add("", "", row{field: r.path + "number of " + name, size: "1", kind: "u8"})
			outer := r.path
			r.path += name + "[]."
			closure := c.Args[len(c.Args)-1].(*ast.FuncLit)
			for _, p := range closure.Type.Params.List {
				r.types[p.Names[0].Name] = typeName(p.Type)
			}
			r.block(closure.Body.List)
			r.path = outer
			return
		case r.funcs[f.Name] != nil && r.decodes(c):
			r.inline(r.funcs[f.Name])
			return
		}
	}
	for _, a := range c.Args {
		r.expression(a, of, name)
	}
}

// decoder reads what one call of a method of the decoder reads.
func (r *reader) decoder(method string, c *ast.CallExpr, of, name string) {
	if method == "count" {
		r.expression(c.Args[0], "", name)
		return
	}
	kind, ok := fieldKinds[method]
	if !ok {
		return
	}
	if method == "take" || method == "str" {
		for _, a := range c.Args {
			r.expression(a, "", "number of "+name)
		}
		kind[1] = r.length(c.Args[0], of, name)
	}
	r.add(of, name, row{size: kind[1], kind: kind[0], comment: r.lines[r.line(c.Pos())]})
}

// length returns the number of bytes that an expression says: a constant, the length of an array, or n.
func (r *reader) length(x ast.Expr, of, name string) string {
	text := r.inWords(r.print(x))
	if strings.Trim(text, "0123456789") == "" {
		return text
	}
	_, t := r.field(of, name)
	if a, ok := t.(*ast.ArrayType); ok && a.Len != nil {
		if inner, also := a.Elt.(*ast.ArrayType); also {
			a = inner
		}
		return r.inWords(r.print(a.Len))
	}
	return "n"
}

// add adds a row for a field of a struct, or of the given name if it is not one.
func (r *reader) add(of, name string, w row) {
	comment, t := r.field(of, name)
	if t == nil && of == "" && name != "" { // a local variable, from which the field is made
		upper := strings.ToUpper(name[:1]) + name[1:]
		if comment, t = r.field(r.whole, upper); t != nil && !isArray(t) {
			name = upper
		} else {
			comment, t = "", nil
		}
		comment = strings.TrimSpace(comment + " " + r.notes[strings.ToLower(name)])
		comment = strings.TrimSpace(comment + " " + w.comment)
	}
	if w.field == "" {
		w.field = r.path + name
		slice := r.path[:max(0, strings.LastIndexByte(r.path, '['))]
		if slice == name || strings.HasSuffix(slice, "."+name) {
			w.field = strings.TrimSuffix(r.path, ".") // an element that is no struct
		}
	}
	w.meaning, w.comment = comment, comment
	if first := r.sharing(comment); first != "" {
		w.meaning = "see " + first
	}
	if e := r.enums[typeName(t)]; t != nil && len(e) > 0 && typeName(t) != "Flag" {
		w.kind += " " + typeName(t)
	}
	if r.when != "" {
		w.meaning = strings.TrimPrefix(strings.TrimSuffix(w.meaning, ".")+"; present "+r.when, "; ")
	}
	r.rows = append(r.rows, w)
}

// sharing returns the first field with the same comment right ahead of a field; "" if there is none. Fields that are
// declared together share their comment.
func (r *reader) sharing(comment string) string {
	first := ""
	for i := len(r.rows) - 1; i >= 0 && comment != "" && r.rows[i].comment == comment; i-- {
		first = r.rows[i].field
	}
	return first
}

// inline reads what a function reads that is called with the decoder.
func (r *reader) inline(f *ast.FuncDecl) {
	inner := &reader{
		source: r.source, types: map[string]string{}, notes: map[string]string{}, path: r.path, when: r.when, whole: r.whole,
	}
	inner.function(f)
	r.rows = append(r.rows, inner.rows...)
}

// decodes reports whether the decoder is an argument of a call.
func (r *reader) decodes(c *ast.CallExpr) bool {
	for _, a := range c.Args {
		if r.base(a) == "decoder" {
			return true
		}
	}
	return false
}

// base returns the type of a local variable or of the variable that an expression starts with.
func (r *reader) base(x ast.Expr) string {
	if id, ok := x.(*ast.Ident); ok {
		return r.types[id.Name]
	}
	return ""
}

// typeOf returns the name of the type of a variable, or of the elements of a field.
func (r *reader) typeOf(x ast.Expr) string {
	if id, ok := x.(*ast.Ident); ok {
		return r.types[id.Name]
	}
	of, name := r.fieldOf(x)
	if _, t := r.field(of, name); t != nil {
		return typeName(t)
	}
	return ""
}

// fieldOf returns the struct and the name of a field, or "" and the name of a local variable.
func (r *reader) fieldOf(x ast.Expr) (of, name string) {
	switch x := x.(type) {
	case *ast.SelectorExpr:
		return r.typeOf(x.X), x.Sel.Name
	case *ast.IndexExpr:
		return r.fieldOf(x.X)
	case *ast.Ident:
		return "", x.Name
	}
	return "", ""
}

// fieldName returns the name of a field, or of a local variable.
func (r *reader) fieldName(x ast.Expr) string {
	_, name := r.fieldOf(x)
	return name
}

// condition puts a condition into words; "" if it is about errors only.
func (r *reader) condition(x ast.Expr) string {
	text := r.print(x)
	switch {
	case strings.Contains(text, "d.left() > 0"):
		return "bytes are left"
	case text == "n > 0" || strings.HasPrefix(text, "d.err"):
		return ""
	}
	for v := range r.types {
		text = strings.ReplaceAll(text, v+".", "")
	}
	return "`" + r.inWords(text) + "`"
}

func (r *reader) print(x ast.Expr) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, r.fset, x); err != nil {
		return fmt.Sprint(err)
	}
	return b.String()
}

func isArray(t ast.Expr) bool {
	_, ok := t.(*ast.ArrayType)
	return ok
}

// leaves reports whether a block ends the function or the round of a loop.
func leaves(b *ast.BlockStmt) bool {
	switch b.List[len(b.List)-1].(type) {
	case *ast.BranchStmt, *ast.ReturnStmt:
		return true
	}
	return false
}

// fails reports whether a block rejects the message.
func fails(b *ast.BlockStmt) (found bool) {
	ast.Inspect(b, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if s, ok := c.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "fail" {
				found = true
			}
		}
		return true
	})
	return found && !decodesMore(b)
}

// decodesMore reports whether a block that may reject the message also reads fields.
func decodesMore(b *ast.BlockStmt) (found bool) {
	ast.Inspect(b, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if _, ok := fieldKinds[s.Sel.Name]; ok {
				found = true
			}
		}
		return true
	})
	return found
}

func and(a, b string) string {
	if a == "" || b == "" || a == b {
		return max(a, b)
	}
	return a + " and " + b
}
