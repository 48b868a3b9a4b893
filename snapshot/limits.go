package snapshot

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what a manifest may hold. Whoever makes a snapshot is told in
// words; a manifest that exceeds one is damaged or hostile.
const (
	maxManifest  = 16 << 20 // bytes
	maxConfig    = 1 << 20  // bytes
	maxNeeds     = 64 << 10 // bytes of JSON
	maxSections  = 1024
	maxSection   = 8 << 20 // bytes of all sections
	maxLayers    = 1024
	maxDisks     = 64
	maxExtents   = 1 << 17 // of memory, and of each disk
	maxSize      = 1 << 46 // bytes of memory, of a disk
	maxLabel     = 200     // bytes of a label
	maxName      = 100     // bytes of a name
	maxNeedsList = 1024
)

// check tests everything of a manifest but its sections.
func (c *contents) check() error {
	if err := c.Manifest.check(); err != nil {
		return err
	}
	used := make([]bool, len(c.layers))
	if err := c.memory.check(c.layers, used); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if c.memory.Size != c.Needs.Memory || c.memory.Name != "" {
		return fmt.Errorf("memory: %d bytes, %d are needed", c.memory.Size, c.Needs.Memory)
	}
	names := map[string]bool{}
	for _, d := range c.disks {
		if err := checkName(d.Name); err != nil || names[d.Name] {
			return fmt.Errorf("disk %q: bad name or twice there", d.Name)
		}
		names[d.Name] = true
		if err := d.check(c.layers, used); err != nil {
			return fmt.Errorf("disk %s: %w", d.Name, err)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return fmt.Errorf("nothing refers to layer %s", c.layers[i].Sum)
	}
	return checkLayers(c.layers)
}

func checkLayers(layers []LayerInfo) error {
	if len(layers) > maxLayers {
		return fmt.Errorf("%d layers, at most %d are allowed", len(layers), maxLayers)
	}
	sums := map[Sum]bool{}
	for _, l := range layers {
		if l.Size <= 0 || l.Size > maxSize || l.Size%PageSize != 0 || l.Data < 0 || l.Data > l.Size || l.Data%PageSize != 0 || sums[l.Sum] {
			return fmt.Errorf("layer %s: %d bytes of %d, or twice there", l.Sum, l.Data, l.Size)
		}
		sums[l.Sum] = true
	}
	return nil
}

// check tests the extents, as [Table.Overlay] does, and notes the layers.
func (t tableInfo) check(layers []LayerInfo, used []bool) error {
	if t.Size <= 0 || t.Size > maxSize || t.Size%PageSize != 0 {
		return fmt.Errorf("size of %d bytes", t.Size)
	}
	if len(t.Extents) > maxExtents {
		return fmt.Errorf("%d extents, at most %d are allowed", len(t.Extents), maxExtents)
	}
	at := int64(0)
	for _, e := range t.Extents {
		start, length, number, off := e[0], e[1], e[2], e[3]
		switch {
		case (start|length|off)%PageSize != 0, length <= 0, off < 0, start < at, length > t.Size-start:
			return fmt.Errorf("extent %d+%d at offset %d", start, length, off)
		case number < 0 || number >= int64(len(layers)) || off > layers[number].Size-length:
			return fmt.Errorf("extent %d+%d in layer %d at %d", start, length, number, off)
		}
		used[number] = true
		at = start + length
	}
	return nil
}

func (m *Manifest) check() error {
	if err := CheckID(m.ID); err != nil {
		return err
	}
	if m.Parent != "" {
		if err := CheckID(m.Parent); err != nil {
			return fmt.Errorf("parent: %w", err)
		}
	}
	if err := checkText("label", m.Label, maxLabel); err != nil {
		return err
	}
	if y := m.Created.UTC().Year(); y < 1970 || y > 9999 {
		return fmt.Errorf("created in the year %d", y)
	}
	if len(m.Config) > maxConfig || len(m.Config) > 0 && !json.Valid(m.Config) {
		return fmt.Errorf("configuration is not JSON of at most %d bytes", maxConfig)
	}
	if err := checkText("kernel version", m.Kernel.Version, maxLabel*2); err != nil {
		return err
	}
	if err := checkText("kernel sum", m.Kernel.Sum, maxName); err != nil {
		return err
	}
	return m.Needs.check()
}

func (n *Needs) check() error {
	if err := checkText("CPU vendor", n.Vendor, maxName); err != nil {
		return err
	}
	if len(n.Features) > maxNeedsList || len(n.Capabilities) > maxNeedsList {
		return fmt.Errorf("more than %d CPUID leaves or capabilities", maxNeedsList)
	}
	for _, c := range n.Capabilities {
		if err := checkText("capability", c, maxName); err != nil {
			return err
		}
	}
	for _, v := range []int64{int64(n.Family), int64(n.Model), int64(n.Stepping), int64(n.XSAVESize), int64(n.VCPUs), n.TSCkHz} {
		if v < 0 || v > math.MaxInt32 {
			return fmt.Errorf("%d in what it needs", v)
		}
	}
	return nil
}

// checkText admits what can be printed on a terminal, on one line.
func checkText(what, s string, limit int) error {
	if len(s) > limit || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%s is not at most %d bytes of printable characters", what, limit)
	}
	return nil
}

// checkName admits names of sections and disks. Nothing takes them for paths,
// but if something did, none would lead upwards.
func checkName(s string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789._-/"
	if s == "." || len(s) > maxName || strings.Trim(s, allowed) != "" || !fs.ValidPath(s) {
		return fmt.Errorf("name is not 1 to %d characters of a–z, 0–9 and . _ - /", maxName)
	}
	return nil
}
