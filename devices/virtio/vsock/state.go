package vsock

import (
	"cmp"
	"fmt"
	"slices"
)

// State is what of a device outlives it. Connections do not, except for idle
// ones that were kept, and those only if there were no others.
type State struct {
	// Active is whether the driver had the device in service.
	Active bool
	// NextPort is where the search for a free host port goes on, so that a
	// new connection does not meet the remains of an old one.
	NextPort uint32
	// Resets are the RST that the guest is to get: for each connection there
	// was and is not any more, and those that were already waiting.
	Resets []Reset
	// Intact is whether Kept is all connections there were: then the driver
	// has none to reset.
	Intact bool `json:",omitempty"`
	// Kept are the connections that live on.
	Kept []KeptConn `json:",omitempty"`
}

// KeptConn is an idle connection: nothing is under way on it. The numbers are
// those of section 5.10.6.3.
type KeptConn struct {
	GuestPort, HostPort       uint32
	Forwarded, Sent           uint32 // fwd_cnt and tx_cnt of the host
	PeerForwarded, PeerBuffer uint32 // fwd_cnt and buf_alloc of the guest
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
	s := State{Active: d.active || d.unborn, NextPort: d.nextPort}
	if s.Intact = d.intact(); s.Intact {
		for k, c := range d.conns {
			s.Kept = append(s.Kept, KeptConn{
				GuestPort: k.guest, HostPort: k.host,
				Forwarded: c.fwdCnt, Sent: c.txCnt, PeerForwarded: c.peerFwd, PeerBuffer: c.peerAlloc,
			})
		}
		slices.SortFunc(s.Kept, func(a, b KeptConn) int {
			return cmp.Or(cmp.Compare(a.GuestPort, b.GuestPort), cmp.Compare(a.HostPort, b.HostPort))
		})
		s.Resets = append(s.Resets, d.replies...)
		return s
	}
	for k := range d.conns {
		s.Resets = append(s.Resets, Reset{HostCID: HostCID, HostPort: k.host, GuestPort: k.guest, Type: typeStream})
	}
	slices.SortFunc(s.Resets, func(a, b Reset) int {
		return cmp.Or(cmp.Compare(a.GuestPort, b.GuestPort), cmp.Compare(a.HostPort, b.HostPort))
	})
	s.Resets = append(s.Resets, d.replies...)
	return s
}

// intact tells whether there are connections and all of them can live on.
func (d *Device) intact() bool {
	if d.resetting != resetNone || len(d.conns) == 0 {
		return false
	}
	for _, c := range d.conns {
		if !c.kept || !c.idle() {
			return false
		}
	}
	return true
}

// idle tells whether nothing is under way on the connection.
func (c *Conn) idle() bool {
	return c.phase == open && !c.closed && !c.writing && c.owes == 0 && c.in.len() == 0 && c.shut|c.peerShut == 0
}

// Restore makes a device from the state of another, which may come from a
// file. If that one was active the new one is quiet until Resume, and then
// makes the driver reset the guest's old connections, if any are not kept,
// before anything else.
func Restore(cfg Config, st State) (*Device, error) {
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if n := d.cfg.MaxConns + maxReplies; len(st.Resets)+len(st.Kept) > n {
		return nil, fmt.Errorf("vsock: restore: %d resets and %d kept for at most %d connections", len(st.Resets), len(st.Kept), d.cfg.MaxConns)
	}
	if st.NextPort >= firstPort && st.NextPort <= lastPort {
		d.nextPort = st.NextPort
	}
	if !st.Active {
		return d, nil
	}
	d.quiet, d.unborn = true, true
	d.replies = append(d.replies, st.Resets...)
	if !st.Intact {
		d.resetting = resetOwed
		return d, nil
	}
	for _, k := range st.Kept {
		if d.conns[ports{guest: k.GuestPort, host: k.HostPort}] != nil {
			return nil, fmt.Errorf("vsock: restore: connection of ports %d and %d twice", k.GuestPort, k.HostPort)
		}
		c := d.newConn(ports{guest: k.GuestPort, host: k.HostPort})
		c.phase, c.kept = open, true
		c.fwdCnt, c.fwdTold, c.txCnt = k.Forwarded, k.Forwarded, k.Sent
		c.peerFwd, c.peerAlloc = k.PeerForwarded, k.PeerBuffer
		d.inherited = append(d.inherited, c)
	}
	return d, nil
}

// Inherited returns a connection to a guest's port that lives on from the
// machine this one was restored from, or nil. It returns each once.
func (d *Device) Inherited(port uint32) *Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.inherited, func(c *Conn) bool { return c.ports.guest == port })
	if i < 0 {
		return nil
	}
	c := d.inherited[i]
	d.inherited = slices.Delete(d.inherited, i, i+1)
	return c
}
