package agent

// ring keeps the last bytes of a stream, by their offset in it. It takes
// memory as the stream grows, up to max bytes.
type ring struct {
	buf []byte
	max int
	end int64 // offset after the last byte kept
}

// begin returns the offset of the first byte kept.
func (r *ring) begin() int64 { return r.end - int64(min(r.end, int64(len(r.buf)))) }

// write appends b and drops what no longer fits.
func (r *ring) write(b []byte) {
	if room := r.max - len(r.buf); room > 0 { // still growing: end == len(buf)
		n := min(room, len(b))
		r.buf = append(r.buf, b[:n]...)
		r.end += int64(n)
		b = b[n:]
	}
	for len(b) > 0 {
		n := copy(r.buf[r.end%int64(len(r.buf)):], b)
		r.end += int64(n)
		b = b[n:]
	}
}

// read copies bytes from offset off on into p. It returns their number and the
// offset of the first, which is later than off if some were dropped.
func (r *ring) read(off int64, p []byte) (int, int64) {
	off = max(off, r.begin())
	if off >= r.end {
		return 0, off
	}
	i := off % int64(len(r.buf))
	avail := min(int64(len(r.buf))-i, r.end-off)
	return copy(p, r.buf[i:i+avail]), off
}
