package template

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/forkvm/forkvm/vmm"
)

// imageSlot is the image of one template as this process has it.
type imageSlot struct {
	turn chan struct{} // holds one value while nobody changes what follows
	held *heldImage    // nil: none

	// stale: the template has changed while somebody had the turn, who may have
	// seen it as it was. Store.mu guards it.
	stale bool
}

// heldImage is an image that this process has open.
type heldImage struct {
	id    string // of the snapshot
	image *vmm.Image
	close func() error

	// Store.mu guards what follows. One that has been replaced is closed when
	// nobody uses it any more.
	users    int
	replaced bool
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
	image, info, _, err := s.Use(ctx, name, o)
	return image, info, err // it is used until Close
}

// Use is ImageOrBuild for who says when it needs the image no longer, by calling
// done: the image is valid until then, or Close. That of a template which has
// been removed or built again is closed with its last user.
func (s *Store) Use(ctx context.Context, name string, o BuildOptions) (image *vmm.Image, info Info, done func(), err error) {
	if err := CheckName(name); err != nil {
		return nil, Info{}, nil, err
	}
	if _, err := s.Get(name); errors.Is(err, ErrNotFound) && !Builtin(name) {
		s.letGo(name)
		return nil, Info{}, nil, err // and no slot is made of a name that is nobody's
	}
	slot, err := s.slot(name)
	if err != nil {
		return nil, Info{}, nil, err
	}
	select {
	case <-slot.turn:
	case <-ctx.Done():
		return nil, Info{}, nil, context.Cause(ctx)
	}
	defer s.pass(slot)
	if s.isClosed() {
		return nil, Info{}, nil, ErrClosed
	}
	info, err = s.fill(ctx, slot, name)
	if err != nil && Builtin(name) && (errors.Is(err, ErrNotFound) || unusable(err)) {
		o.NoCache = o.NoCache || unusable(err) // what is cached may be no better
		if _, err := s.Build(ctx, Spec{Name: name}, o); err != nil {
			return nil, Info{}, nil, err
		}
		info, err = s.fill(ctx, slot, name)
	}
	if err != nil {
		return nil, Info{}, nil, err
	}
	return slot.held.image, info, s.use(slot.held), nil
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

// fill makes the slot hold the template as it is now. Between the reading of
// its record and of its snapshot it may be replaced. The caller has the turn.
func (s *Store) fill(ctx context.Context, slot *imageSlot, name string) (Info, error) {
	for last := ""; ; {
		s.fresh(slot)
		info, err := s.Get(name)
		if errors.Is(err, ErrNotFound) {
			s.replace(slot, nil)
		}
		if err != nil {
			return Info{}, err
		}
		if slot.held != nil && slot.held.id == info.Snapshot {
			return info, nil
		}
		image, closeImage, err := s.load(ctx, info.Snapshot)
		if unusable(err) && info.Snapshot != last {
			last = info.Snapshot
			continue
		}
		if err != nil {
			return Info{}, fmt.Errorf("template: %s: %w", name, err)
		}
		s.replace(slot, &heldImage{id: info.Snapshot, image: image, close: closeImage})
		return info, nil
	}
}

func (s *Store) loadImage(ctx context.Context, id string) (*vmm.Image, func() error, error) {
	image, err := vmm.Load(ctx, s.snapshots, id, vmm.LoadOptions{KVM: s.opts.Machine.KVM, Scratch: s.path("scratch")})
	if err != nil {
		return nil, nil, err
	}
	return image, image.Close, nil
}

// replace puts an image, or none, in a slot in the place of another. The caller
// has the turn.
func (s *Store) replace(slot *imageSlot, by *heldImage) {
	old := slot.held
	slot.held = by
	s.mu.Lock()
	if by != nil {
		s.open[by] = true
	}
	if old != nil {
		old.replaced = true
	}
	s.mu.Unlock()
	if old != nil {
		s.closeUnused(old)
	}
}

// letGo closes the image of a template as it was, if nobody uses it.
func (s *Store) letGo(name string) {
	s.mu.Lock()
	slot := s.images[name]
	if slot != nil {
		slot.stale = true
	}
	s.mu.Unlock()
	if slot == nil {
		return
	}
	select {
	case <-slot.turn:
		s.pass(slot)
	default: // who has the turn does it
	}
}

// pass gives the turn back. If the template has changed since it was looked at,
// the slot is empty then.
func (s *Store) pass(slot *imageSlot) {
	for !s.passFresh(slot) {
		s.replace(slot, nil)
	}
}

// passFresh gives the turn back, unless the slot is stale.
func (s *Store) passFresh(slot *imageSlot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot.stale {
		slot.stale = false
		return false
	}
	slot.turn <- struct{}{} // there is room
	return true
}

// fresh notes that what is seen of the template from now on is as it is.
func (s *Store) fresh(slot *imageSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot.stale = false
}

// use counts a user of an image until the function that it returns is called.
func (s *Store) use(h *heldImage) (done func()) {
	s.mu.Lock()
	h.users++
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		h.users--
		s.mu.Unlock()
		s.closeUnused(h)
	})
}

// closeUnused closes an image that was replaced and that nobody uses.
func (s *Store) closeUnused(h *heldImage) {
	s.mu.Lock()
	last := h.replaced && h.users == 0 && s.open[h]
	if last {
		delete(s.open, h)
	}
	s.mu.Unlock()
	if last {
		_ = h.close() // there is nobody to tell
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
	for _, slot := range slots {
		<-slot.turn
		defer func() { slot.turn <- struct{}{} }()
	}
	s.mu.Lock()
	open := s.open
	s.open = map[*heldImage]bool{}
	s.mu.Unlock()
	var errs []error
	for h := range open {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}
