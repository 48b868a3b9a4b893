package snapshot

import (
	"context"
	"encoding/json"
	"time"
)

// Draft is what becomes a snapshot. Its tables must hold still until Create
// returns, which is all that immutable tables can do.
type Draft struct {
	// Label and Parent are optional. See [Manifest].
	Label, Parent string
	Config        json.RawMessage
	Needs         Needs // but for Memory
	Kernel        Kernel
	// Sections are the parts of the machine's state. Names are of a–z, 0–9
	// and . _ - /; all sections together are at most 8 MiB.
	Sections map[string][]byte
	Memory   *Table
	Disks    []Disk
	// Progress, if any, is told of the bytes written so far and in all. It is
	// never called twice at a time.
	Progress func(done, total int64)
}

// Create stores a snapshot. Of the layers it writes those that the store has
// not got, and of those only the part that is used, if that is less than half.
//
// Create returns when the snapshot is durable. If it fails, or ctx ends
// first, the store is as it was before. It fails with [ErrNoSpace] if the file
// system is full and with [ErrInvalid] if the draft is outside the limits of
// the format.
func (s *Store) Create(ctx context.Context, d Draft) (Info, error) {
	info, err := s.create(ctx, d)
	return info, wrapf(err, "snapshot: create")
}

func (s *Store) create(ctx context.Context, d Draft) (Info, error) {
	c, err := d.contents()
	if err != nil {
		return Info{}, err
	}
	st, err := s.newStage(ctx)
	if err != nil {
		return Info{}, err
	}
	defer st.close()
	p, err := st.plan(d)
	if err != nil {
		return Info{}, err
	}
	if err := p.write(ctx, newProgress(p.total, d.Progress)); err != nil {
		return Info{}, err
	}
	c.layers = p.infos
	c.memory = p.describe("", d.Memory)
	for _, disk := range d.Disks {
		c.disks = append(c.disks, p.describe(disk.Name, disk.Table))
	}
	if err := c.check(); err != nil {
		return Info{}, invalid("%w", err)
	}
	raw, err := c.encode()
	if err != nil {
		return Info{}, err
	}
	if err := st.publish(ctx, c.ID, raw); err != nil {
		return Info{}, err
	}
	c.encoded = int64(len(raw))
	return c.info(st.added), nil
}

// contents is all of the manifest but the layers, checked as far as possible
// before anything is written.
func (d *Draft) contents() (*contents, error) {
	if d.Memory == nil {
		return nil, invalid("a snapshot without memory")
	}
	c := &contents{Manifest: Manifest{
		ID: newID(), Label: d.Label, Parent: d.Parent, Created: time.Now().UTC(),
		Config: d.Config, Needs: d.Needs, Kernel: d.Kernel,
	}}
	c.Needs.Memory = d.Memory.Size()
	if err := c.Manifest.check(); err != nil {
		return nil, invalid("%w", err)
	}
	if len(d.Disks) > maxDisks {
		return nil, invalid("%d disks, at most %d are allowed", len(d.Disks), maxDisks)
	}
	for _, disk := range d.Disks {
		if err := checkName(disk.Name); err != nil || disk.Table == nil {
			return nil, invalid("disk %q: bad name or no table", disk.Name)
		}
	}
	var err error
	c.sections, err = encodeSections(d.Sections)
	return c, err
}

// plan says which layers a snapshot needs and what has to be written.
type plan struct {
	stage  *stage
	layers []*Layer
	infos  []LayerInfo    // of the files that have them
	number map[*Layer]int // index of infos
	todo   []todo
	total  int64 // bytes to write
}

// todo is a layer that the store has not got.
type todo struct {
	layer *Layer
	want  spans // nil for all of it
}

func (st *stage) plan(d Draft) (*plan, error) {
	p := &plan{stage: st, number: map[*Layer]int{}}
	used := map[*Layer][]span{}
	for _, t := range append([]Disk{{Table: d.Memory}}, d.Disks...) {
		if n := len(t.Table.Extents()); n > maxExtents {
			return nil, invalid("%d extents of one table, at most %d are allowed", n, maxExtents)
		}
		for _, e := range t.Table.Extents() {
			if used[e.Layer] == nil {
				p.layers = append(p.layers, e.Layer)
			}
			used[e.Layer] = append(used[e.Layer], span{e.Offset, e.Offset + e.Length})
		}
	}
	if len(p.layers) > maxLayers {
		return nil, invalid("%d layers, at most %d are allowed", len(p.layers), maxLayers)
	}
	for _, l := range p.layers {
		if err := p.add(l, newSpans(used[l])); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add finds a file of the layer in the store, or puts it on the list.
func (p *plan) add(l *Layer, want spans) error {
	for _, f := range l.kept.covering(want) {
		if p.stage.has(f.info) {
			p.refer(l, f.info)
			return nil
		}
	}
	all, err := dataBytes(l.file, l.size, nil)
	if err != nil {
		return err
	}
	some, err := dataBytes(l.file, l.size, want)
	if err != nil {
		return err
	}
	if some >= all/2 {
		some, want = all, nil
	}
	p.total += some
	p.todo = append(p.todo, todo{l, want})
	return nil
}

// refer notes which file has a layer. Two layers may have the same bytes.
func (p *plan) refer(l *Layer, info LayerInfo) {
	for i := range p.infos {
		if p.infos[i].Sum == info.Sum {
			p.number[l] = i
			return
		}
	}
	p.number[l] = len(p.infos)
	p.infos = append(p.infos, info)
}

func (p *plan) write(ctx context.Context, watch *progress) error {
	for _, t := range p.todo {
		info, err := p.stage.write(ctx, t.layer.file, t.layer.size, t.want, watch)
		if err != nil {
			return err
		}
		t.layer.kept.add(form{info, t.want})
		p.refer(t.layer, info)
	}
	return nil
}

// describe puts a table in terms of the files.
func (p *plan) describe(name string, t *Table) tableInfo {
	info := tableInfo{Name: name, Size: t.Size(), Extents: make([][4]int64, 0, len(t.Extents()))}
	for _, e := range t.Extents() {
		info.Extents = append(info.Extents, [4]int64{e.Start, e.Length, int64(p.number[e.Layer]), e.Offset})
	}
	return info
}
