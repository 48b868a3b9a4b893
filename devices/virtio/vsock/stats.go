package vsock

// Stats counts what passed through a device since it was made.
type Stats struct {
	PacketsToGuest   uint64
	BytesToGuest     uint64 // of payload
	PacketsFromGuest uint64 // well-formed ones
	BytesFromGuest   uint64 // of payload

	ResetsSent     uint64
	ResetsReceived uint64

	// Malformed counts what no correct driver does: packets shorter than
	// their header says or from a CID that is not the guest's, unknown
	// operations, data beyond the credit given, buffers too small to use.
	Malformed uint64
	// Dropped counts bytes of payload that arrived for a connection whose
	// host end does not read any more.
	Dropped uint64

	// Conns is the number of connections now, with those that close.
	Conns int
}

// Stats returns the counters. It is safe for concurrent use.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Conns = len(d.conns)
	return s
}
