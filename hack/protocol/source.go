// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strings"
)

// A source is what the page needs of the package.
type source struct {
	fset    *token.FileSet
	structs map[string]*ast.StructType
	docs    map[string]string        // of types
	funcs   map[string]*ast.FuncDecl // "name", or "type.name" of a method
	values  map[string]string        // of constants
	enums   map[string][]enum        // by type
	named   map[string]bool          // constants that a table of the page names
	kinds   []enum                   // the constants of type Type
	lines   map[string]string        // comments, by the line in which they begin
}

// An enum is a named value.
type enum struct{ name, value, comment string }

// load parses the package in a folder, without its tests.
func load(folder string) (*source, error) {
	s := &source{
		fset: token.NewFileSet(), structs: map[string]*ast.StructType{}, docs: map[string]string{},
		funcs: map[string]*ast.FuncDecl{}, values: map[string]string{}, enums: map[string][]enum{},
		named: map[string]bool{}, lines: map[string]string{},
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(s.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		files = append(files, f)
		for _, c := range f.Comments {
			s.lines[s.line(c.Pos())] = oneLine(c)
		}
	}
	s.evaluate(files)
	for _, f := range files {
		for _, d := range f.Decls {
			s.declare(d)
		}
	}
	s.kinds = s.enums["Type"]
	if len(s.kinds) == 0 || s.funcs["newMessage"] == nil {
		return nil, fmt.Errorf("%s: no constants of type Type, or no function newMessage", folder)
	}
	return s, nil
}

// line returns the key of a position's line in lines.
func (s *source) line(pos token.Pos) string {
	p := s.fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// evaluate finds the values of constants. What is imported is not loaded: sizes of fields do not depend on it.
func (s *source) evaluate(files []*ast.File) {
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: nothing{}, Error: func(error) {}}
	_, _ = cfg.Check("wire", s.fset, files, info) // errors are about what is imported
	for id, o := range info.Defs {
		if c, ok := o.(*types.Const); ok && c.Val().Kind() == constant.Int {
			s.values[id.Name] = c.Val().ExactString()
		}
	}
}

// nothing imports nothing.
type nothing struct{}

// Import implements types.Importer.
func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("not loaded") }

// declare keeps what a declaration declares.
func (s *source) declare(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = typeName(d.Recv.List[0].Type) + "." + name
		}
		s.funcs[name] = d
	case *ast.GenDecl:
		group := "" // the type of constants that do not repeat it
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.docs[spec.Name.Name] = oneLine(spec.Doc, d.Doc)
				if st, ok := spec.Type.(*ast.StructType); ok {
					s.structs[spec.Name.Name] = st
				}
			case *ast.ValueSpec:
				if d.Tok != token.CONST {
					continue
				}
				if spec.Type != nil {
					group = typeName(spec.Type)
					if group == "uint8" { // flags, named after their first word
						group = "Flag"
					}
				} else if len(spec.Values) > 0 {
					group = ""
				}
				if group != "" {
					name := spec.Names[0].Name
					s.named[name] = true
					s.enums[group] = append(s.enums[group], enum{name, s.values[name], oneLine(spec.Doc, spec.Comment)})
				}
			}
		}
	}
}

// field returns the comment and the type of a field of a struct; "" if there is none.
func (s *source) field(of, name string) (comment string, typ ast.Expr) {
	st := s.structs[of]
	if st == nil {
		return "", nil
	}
	for _, f := range st.Fields.List {
		if len(f.Names) == 0 && typeName(f.Type) == name {
			return oneLine(f.Doc, f.Comment), f.Type
		}
		for _, n := range f.Names {
			if n.Name == name {
				return oneLine(f.Doc, f.Comment), f.Type
			}
		}
	}
	return "", nil
}

// fieldAt returns the name of field i of a struct.
func (s *source) fieldAt(of string, i int) string {
	var names []string
	if st := s.structs[of]; st != nil {
		for _, f := range st.Fields.List {
			for _, n := range f.Names {
				names = append(names, n.Name)
			}
		}
	}
	if i < len(names) {
		return names[i]
	}
	return ""
}

// mentions returns the constants of type Type that a function names.
func (s *source) mentions(function string) map[string]bool {
	named := map[string]bool{}
	if f := s.funcs[function]; f != nil {
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && strings.HasPrefix(id.Name, "Type") {
				named[id.Name] = true
			}
			return true
		})
	}
	return named
}

var word = regexp.MustCompile(`[A-Za-z_]\w*`)

// inWords replaces the names of constants in a text by their values.
func (s *source) inWords(text string) string {
	return word.ReplaceAllStringFunc(text, func(w string) string {
		if v, ok := s.values[w]; ok && !s.named[w] {
			return v
		}
		return w
	})
}

// typeName returns the name of a type without pointers, slices and packages.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.ArrayType:
		return typeName(e.Elt)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// oneLine returns the first comment that there is, in one line.
func oneLine(comments ...*ast.CommentGroup) string {
	for _, c := range comments {
		if c != nil {
			return strings.Join(strings.Fields(c.Text()), " ")
		}
	}
	return ""
}
