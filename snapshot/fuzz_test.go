package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"testing"
)

// FuzzManifest decodes bytes as they are, and as the body of a manifest whose
// checksum is right. What decodes can be encoded, and is then the same.
func FuzzManifest(f *testing.F) {
	_, _, names := smallSnapshot(f)
	raw, err := os.ReadFile(names[2])
	if err != nil {
		f.Fatal(err)
	}
	_, body, _ := bytes.Cut(raw, []byte("\n"))
	f.Add(raw)
	f.Add(body)
	f.Add([]byte("forkvm-snapshot 2 \n"))
	f.Add([]byte(`{"layers":null,"memory":{"size":4096,"extents":null},"sections":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, raw := range [][]byte{data, seal(data)} {
			c, err := decode(raw)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
					t.Fatalf("untyped error %v", err)
				}
				continue
			}
			again, err := c.encode()
			if err != nil {
				t.Fatal(err)
			}
			twice, err := decode(again)
			if err != nil {
				t.Fatalf("%v, encoded as %s", err, again)
			}
			third, err := twice.encode()
			if err != nil || !bytes.Equal(again, third) {
				t.Fatalf("%v: %s, then %s", err, again, third)
			}
			tablesFit(t, c)
		}
	})
}

// tablesFit makes tables of a manifest that was accepted, over files of the
// sizes that it names.
func tablesFit(t *testing.T, c *contents) {
	var layers []*Layer
	for _, l := range c.layers {
		layers = append(layers, newStoredLayer(nil, l))
	}
	for _, info := range append([]tableInfo{c.memory}, c.disks...) {
		table, err := info.table(layers)
		if err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		for _, e := range table.Extents() {
			if e.Start < 0 || e.End() > table.Size() || e.Offset+e.Length > e.Layer.Size() {
				t.Fatalf("extent %+v", e)
			}
		}
	}
}

// FuzzSections decodes bytes as they are, and as one section whose checksum
// is right.
func FuzzSections(f *testing.F) {
	good, err := encodeSections(map[string][]byte{"vcpu/0": {1, 2, 3}, "irqchip": bytes.Repeat([]byte{1}, 100)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(good))
	f.Add([]byte("null"))
	f.Add([]byte(`[{"name":"a","sum":"","data":null}]`))
	f.Add([]byte(`[[]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		parts, infos, err := decodeSections(data)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("untyped error %v", err)
		}
		if err == nil {
			if len(parts) != len(infos) {
				t.Fatalf("%d sections, %d described", len(parts), len(infos))
			}
			again, err := encodeSections(parts)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := decodeSections(again); err != nil {
				t.Fatal(err)
			}
		}
		one, err := json.Marshal([]section{{"a", sha256.Sum256(data), data}})
		if err != nil {
			t.Fatal(err)
		}
		parts, _, err = decodeSections(one)
		if len(data) <= maxSection && (err != nil || !bytes.Equal(parts["a"], data)) {
			t.Fatalf("%x came back as %x, %v", data, parts["a"], err)
		}
	})
}
