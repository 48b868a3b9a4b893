package blk

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// SectorSize is the unit of a disk in bytes, whatever its block size.
const SectorSize = 512

const (
	// queueSize is that of each queue, in entries.
	queueSize = 256

	// maxSegments is how many buffers the data of a request may have, which
	// with header and status is a queue full. A driver that exceeds it is
	// served.
	maxSegments = queueSize - 2

	// blockSize is what the host prefers to read and write, in bytes.
	blockSize = 4096

	// idSize is the length of an answer to VIRTIO_BLK_T_GET_ID.
	idSize = 20

	// maxQueues is the largest number of queues.
	maxQueues = 8
)

// What one discard and one request to write zeros may cost: both are a table
// to change in the backend, but the latter may be all of the zeros. File
// systems discard what they are made on and zero only little.
const (
	// maxTransfer is how many bytes a request may read or write: whoever stops
	// the device waits for what is under way. Linux has no larger ones.
	maxTransfer = 32 << 20

	maxDiscardRanges  = 16
	maxDiscardSectors = 128 << 20 / SectorSize // of a range
	maxZeroRanges     = 16
	maxZeroSectors    = 128 << 20 / SectorSize // of a range
)

// Device-specific feature bits, section 5.2.3.
const (
	featureSegMax      = 1 << 2
	featureRO          = 1 << 5
	featureBlkSize     = 1 << 6
	featureFlush       = 1 << 9
	featureTopology    = 1 << 10
	featureMQ          = 1 << 12
	featureDiscard     = 1 << 13
	featureWriteZeroes = 1 << 14
)

// Config is the configuration of a device. The zero value has the defaults.
type Config struct {
	// ID is what the driver is told that the disk is called, at most 20 bytes
	// of printable ASCII. Linux has it in /sys/block/vda/serial.
	ID string
	// ReadOnly has the device refuse whatever changes the disk.
	ReadOnly bool
	// Queues is the number of request queues, 1 to 8, best one for each vCPU.
	// The default is 1.
	Queues int
}

func (c Config) withDefaults() (Config, error) {
	c.Queues = cmp.Or(c.Queues, 1)
	if c.Queues < 1 || c.Queues > maxQueues {
		return c, fmt.Errorf("blk: %d queues: not between 1 and %d", c.Queues, maxQueues)
	}
	if len(c.ID) > idSize {
		return c, fmt.Errorf("blk: ID %q: longer than %d bytes", c.ID, idSize)
	}
	for _, b := range []byte(c.ID) {
		if b < ' ' || b > '~' {
			return c, fmt.Errorf("blk: ID %q: not printable ASCII", c.ID)
		}
	}
	return c, nil
}

// Features implements the method of virtio.Device.
func (d *Device) Features() uint64 {
	const all = featureSegMax | featureBlkSize | featureFlush | featureTopology | featureMQ
	if d.cfg.ReadOnly {
		return all | featureRO
	}
	return all | featureDiscard | featureWriteZeroes
}

// Layout of the configuration space, section 5.2.4.
const (
	configCapacity         = 0
	configSegMax           = 12
	configBlkSize          = 20
	configPhysicalBlockExp = 24
	configMinIOSize        = 26
	configNumQueues        = 34
	configMaxDiscard       = 36
	configMaxDiscardSeg    = 40
	configDiscardAlignment = 44
	configMaxZeroes        = 48
	configMaxZeroesSeg     = 52
	configZeroesMayUnmap   = 56
	configSize             = 60
)

// config is the configuration space.
func (d *Device) config() (space [configSize]byte) {
	le := binary.LittleEndian
	const perBlock = blockSize / SectorSize
	le.PutUint64(space[configCapacity:], d.sectors)
	le.PutUint32(space[configSegMax:], maxSegments)
	le.PutUint32(space[configBlkSize:], SectorSize)
	space[configPhysicalBlockExp] = byte(bits.TrailingZeros(perBlock))
	le.PutUint16(space[configMinIOSize:], perBlock)
	le.PutUint16(space[configNumQueues:], uint16(d.cfg.Queues))
	if d.cfg.ReadOnly {
		return space
	}
	le.PutUint32(space[configMaxDiscard:], maxDiscardSectors)
	le.PutUint32(space[configMaxDiscardSeg:], maxDiscardRanges)
	le.PutUint32(space[configDiscardAlignment:], perBlock)
	le.PutUint32(space[configMaxZeroes:], maxZeroSectors)
	le.PutUint32(space[configMaxZeroesSeg:], maxZeroRanges)
	space[configZeroesMayUnmap] = 1
	return space
}

// ReadConfig implements the method of virtio.Device.
func (d *Device) ReadConfig(off uint64, p []byte) {
	space := d.config()
	clear(p)
	if off < configSize {
		copy(p, space[off:])
	}
}
