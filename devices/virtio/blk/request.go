package blk

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/forkvm/forkvm/devices/virtio"
)

// Request types, section 5.2.6.
const (
	typeIn          = 0
	typeOut         = 1
	typeFlush       = 4
	typeGetID       = 8
	typeDiscard     = 11
	typeWriteZeroes = 13
)

// Values of the status byte, section 5.2.6.
const (
	statusOK     = 0
	statusIOErr  = 1
	statusUnsupp = 2
)

const (
	headerSize = 16
	rangeSize  = 16 // of struct virtio_blk_discard_write_zeroes

	rangeUnmap = 1 // flag of a range
)

// anySize is a limit that is none, see request.try.
const anySize = math.MaxUint64

// Why a request is refused.
var (
	errInvalid     = errors.New("blk: request against the rules")
	errUnsupported = errors.New("blk: request not supported")
)

// errLater is that a request takes more than it may.
var errLater = errors.New("blk: backend would wait")

// request is one request from Pop to Push. Requests are used again.
type request struct {
	dev *Device
	run func() // serves dev; a value of its own, so that a goroutine of it allocates nothing

	queue        *virtio.Queue // nil if there is no request
	head         uint16
	out, in      [][]byte // what the driver has the device read and write
	writeThrough bool     // a write is flushed before it is completed

	// Parts of these, once parsed.
	parsed bool
	header [headerSize]byte
	valid  bool     // header is one
	data   [][]byte // of out, behind the header
	room   [][]byte // of in, before the status
	status []byte   // the last byte; empty if there is none

	ranges [maxDiscardRanges * rangeSize]byte

	// What came of it.
	written uint32
	stats   Stats
	failure error // of the backend
}

// popped tells whether r is a request.
func (r *request) popped() bool { return r.queue != nil }

// take makes r the request c. The chain is the queue's, the memory that it
// refers to is not.
func (r *request) take(q *virtio.Queue, c *virtio.Chain, writeThrough bool) {
	r.queue, r.head, r.writeThrough = q, c.Head, writeThrough
	r.out = append(r.out, c.Readable...)
	r.in = append(r.in, c.Writable...)
}

// clear has r forget all but the room that it has for buffers.
func (r *request) clear() {
	r.queue, r.parsed, r.data, r.room, r.status = nil, false, nil, nil, nil
	clear(r.out)
	clear(r.in)
	r.out, r.in = r.out[:0], r.in[:0]
	r.written, r.stats, r.failure = 0, Stats{}, nil
}

// parse copies the header and finds data and status. The driver may have split
// them into buffers in any way (section 2.7.4.2).
func (r *request) parse() {
	if r.parsed {
		return
	}
	r.parsed = true
	if r.valid = gather(r.header[:], r.out) == headerSize; r.valid {
		r.data = advance(r.out, headerSize)
	}
	if len(r.in) == 0 {
		return
	}
	last := &r.in[len(r.in)-1]
	end := len(*last) - 1
	r.status, *last = (*last)[end:], (*last)[:end]
	r.room = r.in
	if end == 0 {
		r.room = r.in[:len(r.in)-1]
	}
}

// serve does what the request asks for, however long the backend takes.
func (r *request) serve() { r.try(0) }

// try is serve if the backend need not wait, and has no more than most bytes
// to transfer. Otherwise it returns false, with r as it was. With most 0 the
// backend may wait.
func (r *request) try(most uint64) bool {
	r.parse()
	if len(r.status) == 0 {
		r.stats.Refused++ // and nobody to tell
		return true
	}
	room := length(r.room)
	n, err := r.perform(most)
	switch {
	case err == errLater:
		return false
	case err == nil:
		r.status[0] = statusOK
	case err == errUnsupported:
		r.status[0] = statusUnsupp
		r.stats.Refused++
	case err == errInvalid:
		r.status[0] = statusIOErr
		r.stats.Refused++
	default:
		r.status[0] = statusIOErr
		r.stats.Failed++
		r.failure = err
	}
	// The length covers what was written from the first byte on (section
	// 2.7.8.2): the status only if nothing before it was left out.
	if n == room {
		n++
	}
	r.written = uint32(n)
	return true
}

// perform is try without the status. It returns the number of bytes written to
// the writable part.
func (r *request) perform(most uint64) (n uint64, err error) {
	if !r.valid {
		return 0, errInvalid
	}
	sector := binary.LittleEndian.Uint64(r.header[8:])
	switch binary.LittleEndian.Uint32(r.header[:]) {
	case typeIn:
		return r.read(sector, most)
	case typeOut:
		return 0, r.write(sector, most)
	case typeGetID:
		return r.identify()
	case typeFlush:
		return 0, r.flush(most)
	case typeDiscard:
		return 0, r.discard(most)
	case typeWriteZeroes:
		return 0, r.writeZeroes(most)
	}
	return 0, errUnsupported
}

func (r *request) read(sector, most uint64) (uint64, error) {
	n := length(r.room)
	off, err := r.dev.place(sector, n)
	if err != nil {
		return 0, err
	}
	if n > 0 {
		if err := r.transfer(n, most, r.room, off, Trier.TryReadAt, Backend.ReadAt); err != nil {
			return 0, err
		}
	}
	r.stats.Reads++
	r.stats.ReadBytes += n
	return n, nil
}

func (r *request) write(sector, most uint64) error {
	n := length(r.data)
	off, err := r.dev.place(sector, n)
	if err != nil {
		return err
	}
	if r.dev.cfg.ReadOnly {
		return errInvalid
	}
	if r.writeThrough && !r.dev.volatile && most > 0 {
		return errLater
	}
	if n > 0 {
		if err := r.transfer(n, most, r.data, off, Trier.TryWriteAt, Backend.WriteAt); err != nil {
			return err
		}
	}
	if err := r.settle(); err != nil {
		return err
	}
	r.stats.Writes++
	r.stats.WrittenBytes += n
	return nil
}

// transfer moves n bytes by one of the two methods.
func (r *request) transfer(n, most uint64, bufs [][]byte, off int64,
	try func(Trier, [][]byte, int64) (bool, error), do func(Backend, [][]byte, int64) error) error {
	switch {
	case n > maxTransfer:
		return errInvalid
	case most == 0:
		return do(r.dev.backend, bufs, off)
	case r.dev.trier == nil || n > most:
		return errLater
	}
	done, err := try(r.dev.trier, bufs, off)
	if !done {
		return errLater
	}
	return err
}

func (r *request) flush(most uint64) error {
	if most > 0 && !r.dev.volatile {
		return errLater
	}
	if !r.dev.volatile {
		if err := r.dev.backend.Flush(); err != nil {
			return err
		}
	}
	r.stats.Flushes++
	return nil
}

// settle makes a write durable if the driver has no way to ask for that
// (section 5.2.6.2).
func (r *request) settle() error {
	if !r.writeThrough || r.dev.volatile {
		return nil
	}
	return r.dev.backend.Flush()
}

// identify answers with the ID, zeros behind it if it is short.
func (r *request) identify() (uint64, error) {
	if length(r.room) != idSize {
		return 0, errInvalid
	}
	var id [idSize]byte
	copy(id[:], r.dev.cfg.ID)
	rest := id[:]
	for _, b := range r.room {
		rest = rest[copy(b, rest):]
	}
	return idSize, nil
}

func (r *request) discard(most uint64) error {
	ranges, err := r.check(limits{maxDiscardRanges, maxDiscardSectors, 0})
	if err != nil {
		return err
	}
	if most > 0 {
		return errLater
	}
	for ; len(ranges) > 0; ranges = ranges[rangeSize:] {
		if off, n, _ := parse(ranges); n > 0 {
			if err := r.dev.backend.Discard(off, n); err != nil {
				return err
			}
		}
	}
	if err := r.settle(); err != nil {
		return err
	}
	r.stats.Discards++
	return nil
}

func (r *request) writeZeroes(most uint64) error {
	ranges, err := r.check(limits{maxZeroRanges, maxZeroSectors, rangeUnmap})
	if err != nil {
		return err
	}
	if most > 0 {
		return errLater
	}
	for ; len(ranges) > 0; ranges = ranges[rangeSize:] {
		if off, n, flags := parse(ranges); n > 0 {
			if err := r.dev.backend.WriteZeroes(off, n, flags&rangeUnmap != 0); err != nil {
				return err
			}
		}
	}
	if err := r.settle(); err != nil {
		return err
	}
	r.stats.Zeroes++
	return nil
}

// limits is what the ranges of a request are held to.
type limits struct {
	ranges  uint64
	sectors uint32 // of each
	flags   uint32 // known
}

// check copies the ranges that are the data and returns them if all are good.
func (r *request) check(most limits) ([]byte, error) {
	size := length(r.data)
	if r.dev.cfg.ReadOnly || size == 0 || size%rangeSize != 0 || size > most.ranges*rangeSize {
		return nil, errInvalid
	}
	ranges := r.ranges[:gather(r.ranges[:size], r.data)]
	for b := ranges; len(b) > 0; b = b[rangeSize:] {
		sector := binary.LittleEndian.Uint64(b)
		count := binary.LittleEndian.Uint32(b[8:])
		if binary.LittleEndian.Uint32(b[12:])&^most.flags != 0 {
			return nil, errUnsupported
		}
		if count > most.sectors {
			return nil, errInvalid
		}
		if _, err := r.dev.place(sector, uint64(count)*SectorSize); err != nil {
			return nil, err
		}
	}
	return ranges, nil
}

// parse reads the first of ranges that were checked, in bytes.
func parse(ranges []byte) (off, n int64, flags uint32) {
	le := binary.LittleEndian
	return int64(le.Uint64(ranges)) * SectorSize, int64(le.Uint32(ranges[8:])) * SectorSize, le.Uint32(ranges[12:])
}

// place is where n bytes from sector on are in the backend, if they are whole
// sectors of the disk.
func (d *Device) place(sector, n uint64) (off int64, err error) {
	if n%SectorSize != 0 || sector > d.sectors || n/SectorSize > d.sectors-sector {
		return 0, errInvalid
	}
	return int64(sector * SectorSize), nil
}

// length is the number of bytes in bufs.
func length(bufs [][]byte) (n uint64) {
	for _, b := range bufs {
		n += uint64(len(b))
	}
	return n
}

// gather copies the first bytes of bufs to p and returns how many there were.
func gather(p []byte, bufs [][]byte) (n int) {
	for _, b := range bufs {
		n += copy(p[n:], b)
	}
	return n
}

// advance takes the first n bytes off bufs, and empty buffers behind them.
func advance(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
