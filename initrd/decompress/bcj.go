package decompress

import (
	"encoding/binary"
	"io"
)

// x86Filter undoes the x86 "branch/call/jump" filter of xz. Compressors turn the
// relative operand of CALL (E8) and JMP (E9) into an absolute address, so that
// calls of one function look alike; this turns it back. What is converted is
// defined by the encoder's heuristics:
//
//   - the operand's top byte must be 00 or FF ("plain"), as in near branches;
//   - of the three bytes before, at most one may be a branch byte that was left
//     alone, and the operand of that one must not have had a plain top byte.
//
// A converted branch hides the four bytes of its operand. The last four bytes of
// a stream are never the start of a branch.
type x86Filter struct {
	pos uint32 // stream position, modulo 2^32, of the next byte
	// past holds one byte for each stream position before pos, the nearest lowest:
	// zero, or what was seen there. Only the nearest three matter.
	past uint32
}

const (
	branchLeft      = 1 // a branch byte that was left alone
	branchLeftPlain = 2 // and whose operand has a plain top byte

	branchLen = 5 // opcode and operand
)

// decode converts buf in place and returns how many leading bytes are final. The
// rest, shorter than a branch, must be given again followed by more.
func (f *x86Filter) decode(buf []byte) int {
	i := 0
	for i+branchLen <= len(buf) {
		if buf[i]&0xfe != 0xe8 {
			f.past <<= 8
			i++
			continue
		}
		plain := isPlain(buf[i+4])
		distance, ok := f.neighbour()
		switch {
		case plain && ok:
			operand := buf[i+1 : i+branchLen]
			next := f.pos + uint32(i) + branchLen
			relative := toRelative(binary.LittleEndian.Uint32(operand), next, distance)
			binary.LittleEndian.PutUint32(operand, relative)
			f.past = 0
			i += branchLen
			continue
		case plain:
			f.past = f.past<<8 | branchLeftPlain
		default:
			f.past = f.past<<8 | branchLeft
		}
		i++
	}
	f.pos += uint32(i)
	return i
}

// neighbour returns the distance to the one branch byte left alone nearby, 0 if
// there is none, and false if what is nearby forbids a conversion.
func (f *x86Filter) neighbour() (distance uint, ok bool) {
	switch f.past & 0xffffff {
	case 0:
		return 0, true
	case branchLeft:
		return 1, true
	case branchLeft << 8:
		return 2, true
	case branchLeft << 16:
		return 3, true
	}
	return 0, false
}

// toRelative converts an operand back. next is the address of the instruction
// after the branch. If a neighbour's operand overlaps this one, the conversion
// must not make the neighbour's top byte plain, or the decoder could not tell that
// the encoder left it alone; the encoder then complements the bits below and
// converts again. Once is enough: the byte becomes the complement of what it was,
// and that was not plain.
func toRelative(operand, next uint32, distance uint) uint32 {
	relative := operand - next
	if distance > 0 && isPlain(byte(relative>>(24-8*distance))) {
		relative = relative ^ (1<<(32-8*distance) - 1)
		relative -= next
	}
	// Addresses are 25 bits, sign extended.
	return uint32(int32(relative<<7) >> 7)
}

func isPlain(b byte) bool { return b == 0x00 || b == 0xff }

// x86Reader applies an x86Filter to a stream.
type x86Reader struct {
	r      io.Reader
	filter x86Filter
	buf    []byte // final bytes first, then those still to be decoded
	final  int
	out    int // bytes of buf handed out
	n      int // bytes of buf in use
	err    error
}

func newX86Reader(r io.Reader, start uint32) *x86Reader {
	return &x86Reader{r: r, filter: x86Filter{pos: start}, buf: make([]byte, 64<<10)}
}

// Read implements io.Reader.
func (x *x86Reader) Read(p []byte) (int, error) {
	for x.out == x.final {
		if x.err != nil {
			return 0, x.err
		}
		x.fill()
	}
	n := copy(p, x.buf[x.out:x.final])
	x.out += n
	return n, nil
}

// fill replaces what was handed out by the next decoded bytes.
func (x *x86Reader) fill() {
	x.n = copy(x.buf, x.buf[x.final:x.n])
	x.out = 0
	var n int
	n, x.err = x.r.Read(x.buf[x.n:])
	x.n += n
	x.final = x.filter.decode(x.buf[:x.n])
	if x.err == io.EOF {
		x.final = x.n
	}
}
