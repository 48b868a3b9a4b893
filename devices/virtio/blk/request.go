package blk

import (
	"encoding/binary"
	"errors"

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

// Why a request is refused.
var (
	errInvalid     = errors.New("blk: request against the rules")
	errUnsupported = errors.New("blk: request not supported")
)

// request is one request from Pop to Push. Requests are used again.
type request struct {
	queue        *virtio.Queue
	head         uint16
	out, in      [][]byte // what the driver has the device read and write
	writeThrough bool     // a write is flushed before it is completed

	ranges [maxDiscardRanges * rangeSize]byte

	// What came of it.
	written uint32
	stats   Stats
	failure error // of the backend
}

// take makes r the request c. The chain is the queue's, the memory that it
// refers to is not.
func (r *request) take(q *virtio.Queue, c *virtio.Chain, writeThrough bool) {
	r.queue, r.head, r.writeThrough = q, c.Head, writeThrough
	r.out = append(r.out, c.Readable...)
	r.in = append(r.in, c.Writable...)
}

// clear has r forget all but the room that it has for buffers.
func (r *request) clear() {
	r.queue = nil
	clear(r.out)
	clear(r.in)
	r.out, r.in = r.out[:0], r.in[:0]
	r.written, r.stats, r.failure = 0, Stats{}, nil
}

// serve does what the request asks for and writes its status, which is the
// last byte that the device may write. The driver may have split header, data
// and status into buffers in any way (section 2.7.4.2).
func (r *request) serve(d *Device) {
	if len(r.in) == 0 {
		r.stats.Refused++ // and nobody to tell
		return
	}
	last := &r.in[len(r.in)-1]
	status := (*last)[len(*last)-1:]
	*last = (*last)[:len(*last)-1]
	room := length(r.in)

	n, err := r.perform(d)
	switch {
	case err == nil:
		status[0] = statusOK
	case err == errUnsupported:
		status[0] = statusUnsupp
		r.stats.Refused++
	case err == errInvalid:
		status[0] = statusIOErr
		r.stats.Refused++
	default:
		status[0] = statusIOErr
		r.stats.Failed++
		r.failure = err
	}
	// The length covers what was written from the first byte on (section
	// 2.7.8.2): the status only if nothing before it was left out.
	if n == room {
		n++
	}
	r.written = uint32(n)
}

// perform is serve without the status. It returns the number of bytes written
// to the writable part.
func (r *request) perform(d *Device) (n uint64, err error) {
	var header [headerSize]byte
	if gather(header[:], r.out) < headerSize {
		return 0, errInvalid
	}
	data := advance(r.out, headerSize)
	sector := binary.LittleEndian.Uint64(header[8:])
	switch binary.LittleEndian.Uint32(header[:]) {
	case typeIn:
		return r.read(d, sector)
	case typeOut:
		return 0, r.write(d, data, sector)
	case typeFlush:
		return 0, r.flush(d)
	case typeGetID:
		return r.identify(d)
	case typeDiscard:
		return 0, r.discard(d, data)
	case typeWriteZeroes:
		return 0, r.writeZeroes(d, data)
	}
	return 0, errUnsupported
}

func (r *request) read(d *Device, sector uint64) (uint64, error) {
	n := length(r.in)
	off, err := d.place(sector, n)
	if err != nil {
		return 0, err
	}
	if n > 0 {
		// The last buffer may have been the status alone.
		if err := d.backend.ReadAt(advance(trim(r.in), 0), off); err != nil {
			return 0, err
		}
	}
	r.stats.Reads++
	r.stats.ReadBytes += n
	return n, nil
}

func (r *request) write(d *Device, data [][]byte, sector uint64) error {
	n := length(data)
	off, err := d.place(sector, n)
	if err != nil {
		return err
	}
	if d.cfg.ReadOnly {
		return errInvalid
	}
	if n > 0 {
		if err := d.backend.WriteAt(data, off); err != nil {
			return err
		}
	}
	if err := r.settle(d); err != nil {
		return err
	}
	r.stats.Writes++
	r.stats.WrittenBytes += n
	return nil
}

func (r *request) flush(d *Device) error {
	if err := d.backend.Flush(); err != nil {
		return err
	}
	r.stats.Flushes++
	return nil
}

// settle makes a write durable if the driver has no way to ask for that
// (section 5.2.6.2).
func (r *request) settle(d *Device) error {
	if !r.writeThrough {
		return nil
	}
	return d.backend.Flush()
}

// identify answers with the ID, zeros behind it if it is short.
func (r *request) identify(d *Device) (uint64, error) {
	if length(r.in) != idSize {
		return 0, errInvalid
	}
	var id [idSize]byte
	copy(id[:], d.cfg.ID)
	rest := id[:]
	for _, b := range r.in {
		rest = rest[copy(b, rest):]
	}
	return idSize, nil
}

func (r *request) discard(d *Device, data [][]byte) error {
	ranges, err := r.check(d, data, limits{maxDiscardRanges, maxDiscardSectors, 0})
	if err != nil {
		return err
	}
	for ; len(ranges) > 0; ranges = ranges[rangeSize:] {
		if off, n, _ := parse(ranges); n > 0 {
			if err := d.backend.Discard(off, n); err != nil {
				return err
			}
		}
	}
	if err := r.settle(d); err != nil {
		return err
	}
	r.stats.Discards++
	return nil
}

func (r *request) writeZeroes(d *Device, data [][]byte) error {
	ranges, err := r.check(d, data, limits{maxZeroRanges, maxZeroSectors, rangeUnmap})
	if err != nil {
		return err
	}
	for ; len(ranges) > 0; ranges = ranges[rangeSize:] {
		if off, n, flags := parse(ranges); n > 0 {
			if err := d.backend.WriteZeroes(off, n, flags&rangeUnmap != 0); err != nil {
				return err
			}
		}
	}
	if err := r.settle(d); err != nil {
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

// check copies the ranges in data and returns them if all are good.
func (r *request) check(d *Device, data [][]byte, most limits) ([]byte, error) {
	size := length(data)
	if d.cfg.ReadOnly || size == 0 || size%rangeSize != 0 || size > most.ranges*rangeSize {
		return nil, errInvalid
	}
	ranges := r.ranges[:gather(r.ranges[:size], data)]
	for b := ranges; len(b) > 0; b = b[rangeSize:] {
		sector := binary.LittleEndian.Uint64(b)
		count := binary.LittleEndian.Uint32(b[8:])
		if binary.LittleEndian.Uint32(b[12:])&^most.flags != 0 {
			return nil, errUnsupported
		}
		if count > most.sectors {
			return nil, errInvalid
		}
		if _, err := d.place(sector, uint64(count)*SectorSize); err != nil {
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

// trim leaves out a last buffer that is empty.
func trim(bufs [][]byte) [][]byte {
	if last := len(bufs) - 1; len(bufs[last]) == 0 {
		return bufs[:last]
	}
	return bufs
}
