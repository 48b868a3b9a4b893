// Package kmod finds kernel modules and what they depend on, on the host, in a
// tree as `make modules_install` leaves it (/lib/modules/RELEASE).
//
// Dependencies are read from the modules themselves, from the "depends" and
// "softdep" entries of their .modinfo section: modules.dep is made by depmod when a
// package is installed, so the tree inside a package has none.
package kmod

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/forkvm/forkvm/initrd/decompress"
)

// MaxModule bounds, in bytes, the size of a decompressed module.
const MaxModule = 64 << 20

// maxClosure bounds how many modules one request may draw in.
const maxClosure = 256

// maxModinfo bounds the .modinfo section, in bytes.
const maxModinfo = 1 << 20

var (
	// ErrNotFound is wrapped by errors about names that are neither a module of the
	// tree nor built into its kernel.
	ErrNotFound = errors.New("no such kernel module")
	// ErrBadModule is wrapped by errors about modules that cannot be read.
	ErrBadModule = errors.New("unreadable kernel module")
)

// Module is one module, decompressed.
type Module struct {
	Name string // as lsmod shows it: with underscores
	Path string // in the tree, without the extension of a compression
	Data []byte // the ELF file
}

// Tree is an index of a module tree. It is immutable; its methods may be called
// from several goroutines.
type Tree struct {
	fsys    fs.FS
	files   map[string]string // name → path
	builtin map[string]bool
}

// Open indexes the tree fsys, whose root holds modules.builtin and the modules.
func Open(fsys fs.FS) (*Tree, error) {
	t := &Tree{fsys: fsys, files: map[string]string{}, builtin: map[string]bool{}}
	list, err := fs.ReadFile(fsys, "modules.builtin")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("kmod: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		t.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && strings.Contains(d.Name(), ".ko") {
			// Trees may hold a module twice, in updates/ besides; like depmod's
			// default, the one later in the walk ("updates" after "kernel") wins.
			t.files[moduleName(name)] = name
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("kmod: %w", err)
	}
	return t, nil
}

// moduleName is the name of the module in the file of that path: dashes and
// underscores are the same to the kernel, and it prints the latter.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// Has tells whether name is a module of the tree.
func (t *Tree) Has(name string) bool { return t.files[moduleName(name)] != "" }

// Builtin tells whether name is compiled into the kernel.
func (t *Tree) Builtin(name string) bool { return t.builtin[moduleName(name)] }

// Resolve returns the modules named and all they depend on, each once, in an order
// in which they can be loaded. What is built in needs no loading and is left out.
// Errors wrap ErrNotFound and ErrBadModule.
func (t *Tree) Resolve(names ...string) ([]Module, error) {
	r := resolver{tree: t, state: map[string]int{}}
	for _, name := range names {
		if err := r.add(moduleName(name), ""); err != nil {
			return nil, fmt.Errorf("kmod: %w", err)
		}
	}
	return r.order, nil
}

// resolver does a depth-first walk over dependencies.
type resolver struct {
	tree  *Tree
	state map[string]int
	order []Module
}

const (
	entered = 1
	done    = 2
)

func (r *resolver) add(name, neededBy string) error {
	if r.state[name] == done || r.tree.builtin[name] {
		return nil
	}
	if r.state[name] == entered {
		return fmt.Errorf("%w: %s and %s need each other", ErrBadModule, name, neededBy)
	}
	file, ok := r.tree.files[name]
	if !ok {
		if neededBy != "" {
			return fmt.Errorf("%w: %s, which %s needs", ErrNotFound, name, neededBy)
		}
		return fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if len(r.state) == maxClosure {
		return fmt.Errorf("%w: more than %d modules needed", ErrBadModule, maxClosure)
	}
	r.state[name] = entered
	m, info, err := r.tree.read(name, file)
	if err != nil {
		return err
	}
	if err := r.addSoft(info.soft, name); err != nil {
		return err
	}
	for _, dep := range info.depends {
		if err := r.add(dep, name); err != nil {
			return err
		}
	}
	r.state[name] = done
	r.order = append(r.order, m)
	return nil
}

// addSoft adds modules that are better loaded first, and may be missing: what a
// soft dependency names is often an alias of something built in.
func (r *resolver) addSoft(names []string, neededBy string) error {
	for _, name := range names {
		if r.tree.files[name] == "" || r.state[name] == entered {
			continue
		}
		if err := r.add(name, neededBy); err != nil {
			return err
		}
	}
	return nil
}

// read returns the module in file and what it says of itself.
func (t *Tree) read(name, file string) (Module, modinfo, error) {
	bad := func(err error) (Module, modinfo, error) {
		return Module{}, modinfo{}, fmt.Errorf("%w: %s: %w", ErrBadModule, file, err)
	}
	data, err := t.decompressed(file)
	if err != nil {
		return bad(err)
	}
	info, err := readModinfo(data)
	if err != nil {
		return bad(err)
	}
	plain, _, _ := strings.Cut(file, ".ko")
	return Module{Name: name, Path: plain + ".ko", Data: data}, info, nil
}

func (t *Tree) decompressed(file string) ([]byte, error) {
	f, err := t.fsys.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = io.LimitReader(f, MaxModule+1)
	if path.Ext(file) != ".ko" {
		head := make([]byte, decompress.DetectLen)
		n, err := io.ReadFull(f, head)
		if err != nil && err != io.ErrUnexpectedEOF {
			return nil, err
		}
		zr, err := decompress.NewReader(io.MultiReader(bytes.NewReader(head[:n]), f), decompress.Detect(head[:n]), MaxModule)
		if err != nil {
			return nil, err
		}
		defer zr.Close()
		r = zr
	}
	data, err := io.ReadAll(r)
	if err == nil && len(data) > MaxModule {
		err = decompress.ErrTooLarge
	}
	return data, err
}

// modinfo is what a module says of itself, as far as loading it is concerned.
type modinfo struct {
	depends []string // must be loaded before
	soft    []string // should be loaded before, if there
}

// readModinfo parses the .modinfo section: NUL-terminated "key=value" strings.
func readModinfo(module []byte) (modinfo, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return modinfo{}, err
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return modinfo{}, fmt.Errorf("a module for %s, not for 64-bit x86", f.Machine)
	}
	section := f.Section(".modinfo")
	if section == nil || section.Type == elf.SHT_NOBITS {
		return modinfo{}, errors.New("no .modinfo section")
	}
	// The kernel reads it in place, so it is never compressed; and never this long.
	if section.Flags&elf.SHF_COMPRESSED != 0 || section.Size > maxModinfo {
		return modinfo{}, errors.New("odd .modinfo section")
	}
	raw, err := section.Data()
	if err != nil {
		return modinfo{}, err
	}
	var info modinfo
	for entry := range bytes.SplitSeq(raw, []byte{0}) {
		key, value, _ := strings.Cut(string(entry), "=")
		switch key {
		case "depends":
			for dep := range strings.SplitSeq(value, ",") {
				if dep != "" {
					info.depends = append(info.depends, moduleName(dep))
				}
			}
		case "softdep":
			info.soft = append(info.soft, softPre(value)...)
		}
	}
	return info, nil
}

// softPre returns the modules after "pre:" in a softdep entry, up to "post:".
func softPre(value string) []string {
	var names []string
	pre := false
	for _, word := range strings.Fields(value) {
		switch {
		case strings.HasSuffix(word, ":"):
			pre = word == "pre:"
		case pre:
			names = append(names, moduleName(word))
		}
	}
	return names
}
