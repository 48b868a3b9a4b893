package vsock

import (
	"cmp"
	"fmt"
	"slices"
)

// State is what of a device outlives it. Connections do not.
type State struct {
	// Active is whether the driver had the device in service.
	Active bool
	// NextPort is where the search for a free host port goes on, so that a
	// new connection does not meet the remains of an old one.
	NextPort uint32
	// Resets are the RST that the guest is to get: for each connection there
	// was, and those that were already waiting.
	Resets []Reset
}

// Reset names a guest's socket that is to be told, by an RST packet, that its
// connection does not exist.
type Reset struct {
	HostCID   uint64 // what the guest takes for the host
	HostPort  uint32
	GuestPort uint32
	Type      uint16 // VIRTIO_VSOCK_TYPE_*
}

// Save returns the device's state. The device must be quiet.
func (d *Device) Save() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	// What was restored but not activated yet is what it was.
	s := State{Active: d.active || d.resetting != resetNone, NextPort: d.nextPort}
	for k := range d.conns {
		s.Resets = append(s.Resets, Reset{HostCID: HostCID, HostPort: k.host, GuestPort: k.guest, Type: typeStream})
	}
	slices.SortFunc(s.Resets, func(a, b Reset) int {
		return cmp.Or(cmp.Compare(a.GuestPort, b.GuestPort), cmp.Compare(a.HostPort, b.HostPort))
	})
	s.Resets = append(s.Resets, d.replies...)
	return s
}

// Restore makes a device from the state of another, which may come from a
// file. If that one was active the new one is quiet until Resume, and then
// makes the driver reset the guest's old connections before anything else.
func Restore(cfg Config, st State) (*Device, error) {
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if n := d.cfg.MaxConns + maxReplies; len(st.Resets) > n {
		return nil, fmt.Errorf("vsock: restore: %d resets for at most %d connections", len(st.Resets), n)
	}
	if st.NextPort >= firstPort && st.NextPort <= lastPort {
		d.nextPort = st.NextPort
	}
	if st.Active {
		d.quiet = true
		d.resetting = resetOwed
		d.replies = append(d.replies, st.Resets...)
	}
	return d, nil
}
