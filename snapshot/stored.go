package snapshot

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
)

// keptForms are the files that stores were given of a layer, so that the next
// snapshot which needs the layer only refers to one.
type keptForms struct {
	mu   sync.Mutex
	list []form
}

// form is one such file: of the layer's bytes it has those in part, at their
// places, and zeros elsewhere.
type form struct {
	info LayerInfo
	part spans
}

// maxForms is how many files of one layer are remembered. Each has less in it
// than the one before, so few are ever of use.
const maxForms = 4

func (k *keptForms) add(f form) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, f)
	if len(k.list) > maxForms {
		k.list = slices.Delete(k.list, 0, 1)
	}
}

// covering are the forms that have everything that is wanted.
func (k *keptForms) covering(want spans) (forms []form) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.list {
		if f.part.covers(want) {
			forms = append(forms, f)
		}
	}
	return forms
}

// newStoredLayer is the layer that a file holds, which has been verified. It
// takes the file over.
func newStoredLayer(f *os.File, info LayerInfo) *Layer {
	l := &Layer{file: f, size: info.Size}
	l.refs.Store(1)
	l.kept.add(form{info: info})
	return l
}

// Runs calls fn with the pages of the layer that are not all zeros, in order,
// as sequences of at most 1 MiB. fn must not keep p. It stops at the first
// error of fn and returns it.
func (l *Layer) Runs(ctx context.Context, fn func(off int64, p []byte) error) error {
	s := scanner{file: l.file, size: l.size}
	b := blocks.Get().(*block)
	defer blocks.Put(b)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		off, ok, err := s.nextBlock()
		if err == nil && ok {
			b.reset(off)
			err = s.read(b)
		}
		if !ok || err != nil {
			return wrapf(err, "snapshot: read layer")
		}
		for off, p := range b.runs() {
			if err := fn(off, p); err != nil {
				return err
			}
		}
	}
}

// verifyLayer reads all of a file and compares it with what it should be.
func verifyLayer(ctx context.Context, f *os.File, info LayerInfo, done *progress) error {
	s := scanner{file: f, size: info.Size}
	got, err := s.scan(ctx, done, nil)
	if err == nil && got != info {
		err = corrupt("its bytes have the sum %s", got.Sum)
	}
	return wrapf(err, "layer %s", info.Sum)
}

func wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
