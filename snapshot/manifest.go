package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// formatVersion is the version of manifests, and of the layers they name,
// that this program writes and reads.
const formatVersion = 1

// The first line of a manifest is this word, the format version and the
// SHA-256 of the word, the version and everything after the line.
const magic = "forkvm-snapshot"

// Manifest is what a snapshot says of itself, but for its state and bytes.
type Manifest struct {
	// ID names the snapshot: see [CheckID].
	ID string `json:"id"`
	// Label is for people: at most 200 bytes of printable characters.
	Label string `json:"label,omitempty"`
	// Parent is the id of the snapshot it descends from, which may no longer
	// exist.
	Parent string `json:"parent,omitempty"`
	// Created is in UTC.
	Created time.Time `json:"created"`
	// Config is the machine's, as its owner wrote it.
	Config json.RawMessage `json:"config,omitempty"`
	// Needs is what the machine that runs it must have.
	Needs Needs `json:"needs"`
	// Kernel is what the guest runs.
	Kernel Kernel `json:"kernel"`
}

// Kernel identifies a guest's kernel.
type Kernel struct {
	// Version is what the kernel calls itself.
	Version string `json:"version,omitempty"`
	// Sum is the SHA-256 of its image in hexadecimal.
	Sum string `json:"sum,omitempty"`
}

// SectionInfo describes one section of state.
type SectionInfo struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  Sum    `json:"sum"` // SHA-256 of its bytes
}

// DiskInfo describes a disk.
type DiskInfo struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

// contents is a whole manifest as a program works with it.
type contents struct {
	Manifest
	layers   []LayerInfo
	memory   tableInfo
	disks    []tableInfo
	sections json.RawMessage // a list of sections
	encoded  int64           // bytes of the manifest
}

// tableInfo is a [Table] whose layers are numbers.
type tableInfo struct {
	Name    string // of a disk
	Size    int64
	Extents [][4]int64 // start, length, number of the layer, offset in it
}

// section is a named part of a machine's state.
type section struct {
	Name string `json:"name"`
	Sum  Sum    `json:"sum"`
	Data []byte `json:"data"`
}

// document is the JSON of a manifest. What could decode to much more memory
// than it takes as text stays text until it was counted.
type document struct {
	Manifest
	Needs    json.RawMessage `json:"needs"`
	Layers   json.RawMessage `json:"layers"`
	Memory   tableDocument   `json:"memory"`
	Disks    json.RawMessage `json:"disks,omitempty"`
	Sections json.RawMessage `json:"sections"`
}

type tableDocument struct {
	Name    string          `json:"name,omitempty"`
	Size    int64           `json:"size"`
	Extents json.RawMessage `json:"extents"`
}

// encode makes the bytes of a manifest.
func (c *contents) encode() ([]byte, error) {
	doc := document{Manifest: c.Manifest, Sections: c.sections}
	var err error
	put := func(v any) (raw json.RawMessage) {
		if err == nil {
			raw, err = json.Marshal(v)
		}
		return raw
	}
	doc.Needs = put(c.Manifest.Needs)
	doc.Layers = put(c.layers)
	doc.Memory = tableDocument{Size: c.memory.Size, Extents: put(c.memory.Extents)}
	disks := make([]tableDocument, len(c.disks))
	for i, d := range c.disks {
		disks[i] = tableDocument{d.Name, d.Size, put(d.Extents)}
	}
	if len(disks) > 0 {
		doc.Disks = put(disks)
	}
	body := put(doc)
	if err != nil {
		return nil, invalid("encode: %w", err)
	}
	raw := seal(body)
	if len(raw) > maxManifest {
		return nil, invalid("manifest of %d bytes, at most %d are allowed", len(raw), maxManifest)
	}
	return raw, nil
}

// seal puts the first line before the rest of a manifest.
func seal(body []byte) []byte {
	line := fmt.Appendf(nil, "%s %d ", magic, formatVersion)
	sum := sha256.Sum256(append(slices.Clone(line), body...))
	line = hex.AppendEncode(line, sum[:])
	line = append(line, '\n')
	return append(line, body...)
}

// unseal checks the first line of a manifest and returns the rest.
func unseal(raw []byte) ([]byte, error) {
	if len(raw) > maxManifest {
		return nil, corrupt("manifest of more than %d bytes", maxManifest)
	}
	line, body, ok := bytes.Cut(raw, []byte("\n"))
	fields := strings.Split(string(line[:min(len(line), 200)]), " ")
	if !ok || len(fields) != 3 || fields[0] != magic {
		return nil, corrupt("not a manifest")
	}
	version, err := strconv.ParseUint(fields[1], 10, 32)
	if err != nil || strconv.FormatUint(version, 10) != fields[1] {
		return nil, corrupt("format version %q", fields[1])
	}
	if version != formatVersion {
		return nil, fmt.Errorf("%w: %d, this program reads version %d", ErrVersion, version, formatVersion)
	}
	if !bytes.Equal(seal(body), raw) {
		return nil, corrupt("checksum of the manifest does not match")
	}
	return body, nil
}

// decode reads a manifest. Nothing in it is looked at before its checksum.
func decode(raw []byte) (*contents, error) {
	body, err := unseal(raw)
	if err != nil {
		return nil, err
	}
	c, err := parse(body)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", ErrCorrupt, err)
	}
	c.encoded = int64(len(raw))
	return c, nil
}

func parse(body []byte) (*contents, error) {
	var doc document
	if err := strictJSON(body, &doc); err != nil {
		return nil, err
	}
	c := &contents{Manifest: doc.Manifest, sections: doc.Sections}
	if len(doc.Needs) > maxNeeds {
		return nil, fmt.Errorf("needs of %d bytes", len(doc.Needs))
	}
	if err := strictJSON(doc.Needs, &c.Manifest.Needs); err != nil {
		return nil, fmt.Errorf("needs: %w", err)
	}
	var err error
	if c.layers, err = list[LayerInfo](doc.Layers, maxLayers); err != nil {
		return nil, fmt.Errorf("layers: %w", err)
	}
	if c.memory, err = doc.Memory.table(); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	disks, err := list[tableDocument](doc.Disks, maxDisks)
	if err != nil {
		return nil, fmt.Errorf("disks: %w", err)
	}
	for _, d := range disks {
		t, err := d.table()
		if err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
		c.disks = append(c.disks, t)
	}
	return c, nil
}

func (d tableDocument) table() (tableInfo, error) {
	extents, err := list[[4]int64](d.Extents, maxExtents)
	return tableInfo{d.Name, d.Size, extents}, err
}

// strictJSON decodes exactly one value of which every field is known: a field
// that this program does not know may matter.
func strictJSON(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return fmt.Errorf("more than one JSON value")
	}
	return nil
}

// list decodes a JSON array of at most limit values, none of them more.
func list[T any](raw []byte, limit int) ([]T, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("not a list")
	}
	var values []T
	for d.More() {
		if len(values) == limit {
			return nil, fmt.Errorf("more than %d", limit)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	_, err := d.Token()
	return values, err
}

// encodeSections makes the JSON of sections, in the order of their names.
func encodeSections(parts map[string][]byte) (json.RawMessage, error) {
	if len(parts) > maxSections {
		return nil, invalid("%d sections, at most %d are allowed", len(parts), maxSections)
	}
	list, total := make([]section, 0, len(parts)), 0
	for name, data := range parts {
		if err := checkName(name); err != nil {
			return nil, invalid("section: %w", err)
		}
		if total += len(data); total > maxSection {
			return nil, invalid("more than %d bytes of state", maxSection)
		}
		list = append(list, section{name, sha256.Sum256(data), data})
	}
	slices.SortFunc(list, func(a, b section) int { return strings.Compare(a.Name, b.Name) })
	return json.Marshal(list)
}

// decodeSections reads and verifies the state.
func decodeSections(raw []byte) (map[string][]byte, []SectionInfo, error) {
	parts, err := list[section](raw, maxSections)
	if err != nil {
		return nil, nil, corrupt("sections: %w", err)
	}
	data, infos, total := map[string][]byte{}, []SectionInfo{}, 0
	for _, s := range parts {
		total += len(s.Data)
		switch _, twice := data[s.Name]; {
		case checkName(s.Name) != nil:
			return nil, nil, corrupt("section: %w", checkName(s.Name))
		case twice:
			return nil, nil, corrupt("two sections %s", s.Name)
		case total > maxSection:
			return nil, nil, corrupt("more than %d bytes of state", maxSection)
		case sha256.Sum256(s.Data) != s.Sum:
			return nil, nil, corrupt("checksum of section %s does not match", s.Name)
		}
		data[s.Name] = s.Data
		infos = append(infos, SectionInfo{s.Name, int64(len(s.Data)), s.Sum})
	}
	return data, infos, nil
}
