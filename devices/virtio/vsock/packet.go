package vsock

import (
	"encoding/binary"
	"fmt"
	"net"
)

// HostCID is the context identifier of the host (section 5.10.4).
const HostCID = 2

// Virtqueues, section 5.10.2. RX is what the driver receives.
const (
	queueRX = iota
	queueTX
	queueEvent
	numQueues
)

// Operations, section 5.10.6.
const (
	opRequest       = 1 // VIRTIO_VSOCK_OP_REQUEST
	opResponse      = 2 // VIRTIO_VSOCK_OP_RESPONSE
	opReset         = 3 // VIRTIO_VSOCK_OP_RST
	opShutdown      = 4 // VIRTIO_VSOCK_OP_SHUTDOWN
	opRW            = 5 // VIRTIO_VSOCK_OP_RW
	opCreditUpdate  = 6 // VIRTIO_VSOCK_OP_CREDIT_UPDATE
	opCreditRequest = 7 // VIRTIO_VSOCK_OP_CREDIT_REQUEST
)

// Flags of SHUTDOWN, section 5.10.6.5.
const (
	shutReceive = 1 // VIRTIO_VSOCK_SHUTDOWN_F_RECEIVE
	shutSend    = 2 // VIRTIO_VSOCK_SHUTDOWN_F_SEND
	shutBoth    = shutReceive | shutSend
)

const (
	typeStream = 1 // VIRTIO_VSOCK_TYPE_STREAM

	headerSize = 44
	// maxPayload is how much data a packet to the guest carries at most:
	// Linux's VIRTIO_VSOCK_MAX_PKT_BUF_SIZE.
	maxPayload = 64 << 10

	eventSize           = 4
	eventTransportReset = 0 // VIRTIO_VSOCK_EVENT_TRANSPORT_RESET

	// anyPort is VMADDR_PORT_ANY, which no socket has.
	anyPort = 1<<32 - 1
)

// header is struct virtio_vsock_hdr, section 5.10.6.
type header struct {
	srcCID, dstCID   uint64
	srcPort, dstPort uint32
	len              uint32
	typ, op          uint16
	flags            uint32
	bufAlloc, fwdCnt uint32
}

func (h *header) encode(b *[headerSize]byte) {
	binary.LittleEndian.PutUint64(b[0:], h.srcCID)
	binary.LittleEndian.PutUint64(b[8:], h.dstCID)
	binary.LittleEndian.PutUint32(b[16:], h.srcPort)
	binary.LittleEndian.PutUint32(b[20:], h.dstPort)
	binary.LittleEndian.PutUint32(b[24:], h.len)
	binary.LittleEndian.PutUint16(b[28:], h.typ)
	binary.LittleEndian.PutUint16(b[30:], h.op)
	binary.LittleEndian.PutUint32(b[32:], h.flags)
	binary.LittleEndian.PutUint32(b[36:], h.bufAlloc)
	binary.LittleEndian.PutUint32(b[40:], h.fwdCnt)
}

func (h *header) decode(b *[headerSize]byte) {
	h.srcCID = binary.LittleEndian.Uint64(b[0:])
	h.dstCID = binary.LittleEndian.Uint64(b[8:])
	h.srcPort = binary.LittleEndian.Uint32(b[16:])
	h.dstPort = binary.LittleEndian.Uint32(b[20:])
	h.len = binary.LittleEndian.Uint32(b[24:])
	h.typ = binary.LittleEndian.Uint16(b[28:])
	h.op = binary.LittleEndian.Uint16(b[30:])
	h.flags = binary.LittleEndian.Uint32(b[32:])
	h.bufAlloc = binary.LittleEndian.Uint32(b[36:])
	h.fwdCnt = binary.LittleEndian.Uint32(b[40:])
}

// Addr is the address of one end of a connection.
type Addr struct {
	CID  uint64 // context identifier: HostCID or the guest's
	Port uint32
}

var _ net.Addr = Addr{}

// Network is "vsock".
func (Addr) Network() string { return "vsock" }

// String is CID and port, separated by a colon.
func (a Addr) String() string { return fmt.Sprintf("%d:%d", a.CID, a.Port) }
