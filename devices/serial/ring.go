package serial

// ring is a bounded queue of bytes. Its memory is allocated with the first
// byte, since most ports of most machines stay silent.
type ring struct {
	buf  []byte
	size int // capacity
	head int // index of the oldest byte
	n    int
}

func (r *ring) len() int { return r.n }

// push appends v and reports whether there was room.
func (r *ring) push(v byte) bool {
	if r.n == r.size {
		return false
	}
	r.allocate()
	r.buf[(r.head+r.n)%r.size] = v
	r.n++
	return true
}

// write appends as much of p as there is room for and returns how much.
func (r *ring) write(p []byte) int {
	p = p[:min(len(p), r.size-r.n)]
	if len(p) == 0 {
		return 0
	}
	r.allocate()
	tail := (r.head + r.n) % r.size
	n := copy(r.buf[tail:], p)
	copy(r.buf, p[n:])
	r.n += len(p)
	return len(p)
}

// pop removes the oldest byte, of which there must be one.
func (r *ring) pop() byte {
	v := r.buf[r.head]
	r.drop(1)
	return v
}

// front returns the oldest bytes, as many as lie together. They stay valid
// until dropped.
func (r *ring) front() []byte {
	return r.buf[r.head:min(r.head+r.n, r.size)]
}

// drop removes the n oldest bytes.
func (r *ring) drop(n int) {
	r.n -= n
	r.head = (r.head + n) % r.size
	if r.n == 0 {
		r.head = 0 // touch the same few pages again and again
	}
}

// bytes returns a copy of everything queued, oldest first; nil if empty.
func (r *ring) bytes() []byte {
	if r.n == 0 {
		return nil
	}
	front := r.front()
	p := append(make([]byte, 0, r.n), front...)
	return append(p, r.buf[:r.n-len(front)]...)
}

func (r *ring) allocate() {
	if r.buf == nil {
		r.buf = make([]byte, r.size)
	}
}
