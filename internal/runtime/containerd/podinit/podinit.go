// SPDX-License-Identifier: Apache-2.0

// Package podinit has the programs that run as the first process of containers: static, without a library, about
// 1,400 bytes each. Their source is in src; the compiled code is committed.
package podinit

import (
	"bytes"
	"debug/elf"
	"embed"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"

	"golang.org/x/sys/unix"
)

//go:generate sh generate.sh

// Program is one of the programs, by the name of its source.
type Program string

const (
	// Init starts the program that follows in its arguments, passes signals on to it, reaps orphans, and exits as the
	// program does. It is for spec.init.
	Init Program = "init"
	// Wait waits for the signal Wake and becomes the program that follows in its arguments. It blocks all other signals
	// meanwhile. It is for prepared pods.
	Wait Program = "wait"
)

// Wake makes Wait continue. Nothing else sends this signal to a process that does not ask for it.
const Wake = unix.SIGUSR1

// Exit statuses of the programs if they cannot start the one in their arguments, the same as those of shells.
const (
	CannotRun = 126 // it exists and cannot be executed
	NotFound  = 127 // neither the file nor one of that name in a folder of PATH exists
)

// Complaint is the beginning of the line that they then write to standard error, which names the program and says
// why.
const Complaint = "wangell: cannot run "

//go:embed *.o
var objects embed.FS

// address is where the program is loaded, as linkers place executables.
const address = 0x400000

// Executable returns the executable for an architecture, named as in GOARCH.
func (p Program) Executable(arch string) ([]byte, error) {
	object, err := objects.ReadFile(fmt.Sprintf("%s_%s.o", p, arch))
	if err != nil {
		return nil, fmt.Errorf("the first process of pods is not available on %s: %w", arch, err)
	}
	return link(object)
}

// link makes an executable of an object that consists of code only and begins with its entry point.
func link(object []byte) ([]byte, error) {
	o, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	code, err := onlyCode(o)
	if err != nil {
		return nil, err
	}
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(o.Machine), Version: uint32(elf.EV_CURRENT), Phnum: 2,
	}
	var load, stack elf.Prog64
	header.Ehsize, header.Phentsize = uint16(binary.Size(header)), uint16(binary.Size(load))
	header.Phoff = uint64(header.Ehsize)
	start := uint64(header.Ehsize) + uint64(header.Phnum)*uint64(header.Phentsize)
	header.Entry = address + start
	size := start + uint64(len(code))
	load = elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: address, Paddr: address,
		Filesz: size, Memsz: size, Align: 0x10000}
	stack = elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16}
	var out bytes.Buffer
	for _, part := range []any{header, load, stack, code} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// onlyCode returns the code of an object, which must not need anything else.
func onlyCode(o *elf.File) ([]byte, error) {
	var code []byte
	for _, s := range o.Sections {
		switch {
		case s.Type == elf.SHT_RELA || s.Type == elf.SHT_REL:
			return nil, fmt.Errorf("section %s: the code needs a linker", s.Name)
		case s.Name == ".text":
			var err error
			if code, err = s.Data(); err != nil {
				return nil, err
			}
		case s.Flags&elf.SHF_ALLOC != 0 && s.Size > 0:
			return nil, fmt.Errorf("section %s: there may be code alone", s.Name)
		}
	}
	return code, nil
}

// Install writes the program for this machine to a file, unless it is there.
func (p Program) Install(file string) error {
	program, err := p.Executable(goruntime.GOARCH)
	if err != nil {
		return err
	}
	if had, err := os.ReadFile(file); err == nil && bytes.Equal(had, program) {
		return nil
	}
	// Renamed into place, because running containers may execute the one before it.
	temporary, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(program)
	if err == nil {
		err = temporary.Chmod(0o555)
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}
