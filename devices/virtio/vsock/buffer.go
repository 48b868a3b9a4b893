package vsock

// minBuffer is the first allocation of a buffer that is not empty, in bytes.
const minBuffer = 4 << 10

// buffer is a queue of bytes that allocates as it fills.
type buffer struct {
	b    []byte // circular; its length is a power of two times minBuffer
	head int    // first byte
	n    int    // bytes queued
}

func (q *buffer) len() int { return q.n }

// write appends p. The caller bounds the length.
func (q *buffer) write(p []byte) {
	if q.n+len(p) > len(q.b) {
		q.grow(q.n + len(p))
	}
	tail := q.head + q.n
	if tail >= len(q.b) {
		tail -= len(q.b)
	}
	q.n += len(p)
	k := copy(q.b[tail:], p)
	copy(q.b, p[k:])
}

// read moves up to len(p) bytes from the front to p.
func (q *buffer) read(p []byte) int {
	p = p[:min(len(p), q.n)]
	k := copy(p, q.b[min(q.head, len(q.b)):])
	copy(p[k:], q.b)
	q.n -= len(p)
	if q.n == 0 {
		q.head = 0
	} else if q.head += len(p); q.head >= len(q.b) {
		q.head -= len(q.b)
	}
	return len(p)
}

func (q *buffer) grow(need int) {
	size := max(len(q.b), minBuffer)
	for size < need {
		size *= 2
	}
	b := make([]byte, size)
	n := q.n
	q.read(b[:n])
	*q = buffer{b: b, n: n}
}
