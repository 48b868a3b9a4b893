package template

import (
	"context"
	"errors"
	"fmt"

	"github.com/forkvm/forkvm/vmm"
)

// imageSlot is the image of one template as this process has it.
type imageSlot struct {
	turn    chan struct{} // holds one value while nobody changes what follows
	id      string        // of the snapshot
	image   *vmm.Image
	retired []*vmm.Image // of the template as it was before
}

// Image returns a template ready to start machines from: vmm.Image.Start then
// is a fork, and nothing boots. The first call in a process reads and verifies
// all of it, later ones look whether the template is still the same. A built-in
// template is built if it is not there; if several ask for it at once, one of
// them builds it.
//
// The image belongs to the store and is valid until Close, also when the
// template is removed or built again meanwhile.
func (s *Store) Image(ctx context.Context, name string) (*vmm.Image, Info, error) {
	return s.ImageOrBuild(ctx, name, BuildOptions{})
}

// ImageOrBuild is Image with options for a build of a built-in template.
func (s *Store) ImageOrBuild(ctx context.Context, name string, o BuildOptions) (*vmm.Image, Info, error) {
	if err := CheckName(name); err != nil {
		return nil, Info{}, err
	}
	slot, err := s.slot(name)
	if err != nil {
		return nil, Info{}, err
	}
	select {
	case <-slot.turn:
	case <-ctx.Done():
		return nil, Info{}, context.Cause(ctx)
	}
	defer func() { slot.turn <- struct{}{} }()
	if s.isClosed() {
		return nil, Info{}, ErrClosed
	}
	info, err := s.load(ctx, slot, name)
	if err != nil && Builtin(name) && (errors.Is(err, ErrNotFound) || unusable(err)) {
		o.NoCache = o.NoCache || unusable(err) // what is cached may be no better
		if _, err := s.Build(ctx, Spec{Name: name}, o); err != nil {
			return nil, Info{}, err
		}
		info, err = s.load(ctx, slot, name)
	}
	if err != nil {
		return nil, Info{}, err
	}
	return slot.image, info, nil
}

func (s *Store) slot(name string) (*imageSlot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	slot := s.images[name]
	if slot == nil {
		slot = &imageSlot{turn: make(chan struct{}, 1)}
		slot.turn <- struct{}{}
		s.images[name] = slot
	}
	return slot, nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// load makes the slot hold the template as it is now. Between the reading of
// its record and of its snapshot it may be replaced.
func (s *Store) load(ctx context.Context, slot *imageSlot, name string) (Info, error) {
	for last := ""; ; {
		info, err := s.Get(name)
		if err != nil {
			return Info{}, err
		}
		if slot.image != nil && slot.id == info.Snapshot {
			return info, nil
		}
		image, err := vmm.Load(ctx, s.snapshots, info.Snapshot, vmm.LoadOptions{KVM: s.opts.Machine.KVM, Scratch: s.path("scratch")})
		if unusable(err) && info.Snapshot != last {
			last = info.Snapshot
			continue
		}
		if err != nil {
			return Info{}, fmt.Errorf("template: %s: %w", name, err)
		}
		if slot.image != nil {
			slot.retired = append(slot.retired, slot.image)
		}
		slot.id, slot.image = info.Snapshot, image
		return info, nil
	}
}

// closeImages closes all images, and lets no new ones be made. It waits for
// those being made.
func (s *Store) closeImages() error {
	s.mu.Lock()
	s.closed = true
	slots := s.images
	s.images = map[string]*imageSlot{}
	s.mu.Unlock()
	var errs []error
	for _, slot := range slots {
		<-slot.turn
		if slot.image != nil {
			errs = append(errs, slot.image.Close())
		}
		for _, i := range slot.retired {
			errs = append(errs, i.Close())
		}
		slot.image, slot.retired = nil, nil
		slot.turn <- struct{}{}
	}
	return errors.Join(errs...)
}
